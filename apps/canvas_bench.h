// `headrace bench canvases`: denoise steps of a model that runs whole canvases, or blocks in parts, on a device.
#pragma once
#include "headrace/llm/llm.h"

namespace headrace::app {

// For full_attention and dual_cache, fast_dllm_v2 or diffusion_gemma, as the model is, without graphs and with them,
// one request behind prompts of several lengths: the median step of each number of rows, and the share of max(weight
// bytes / copy rate, flops / matmul rate), measured in the same run. Where a strategy has rules, a scripted one decides
// one token in each pass, whatever the weights. One JSON object a line. Error kUnsupported on a CPU, and for a model of
// another kind.
void bench_canvases(LLM& llm);

}  // namespace headrace::app
