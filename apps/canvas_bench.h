// `headrace bench canvases`: denoise steps of a model whose tokens all see each other, on a device.
#pragma once
#include "headrace/llm/llm.h"

namespace headrace::app {

// For full_attention and dual_cache, without graphs and with them, one request on canvases of several lengths: the
// median step of each number of rows, and the share of max(weight bytes / copy rate, flops / matmul rate), measured in
// the same run. A scripted rule decides one token in each pass, whatever the weights. One JSON object a line.
// Error kUnsupported on a CPU, and for a model of another kind.
void bench_canvases(LLM& llm);

}  // namespace headrace::app
