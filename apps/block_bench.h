// `headrace bench blocks`: denoise steps of a block-diffusion model on a device.
#pragma once
#include <vector>

#include "bench/report.h"
#include "headrace/llm/llm.h"

namespace headrace::app {

// For each number of requests, 1 and 128 where none is given, with prompts of `input_len` tokens: a step's time,
// with the likeliest tokens and with drawn ones, its ratio to max(weight bytes / copy rate, flops / matmul rate),
// measured in the same run, that ratio with the time for cached keys beside it, and tokens/s. Of experts those count
// that evenly choosing rows read. Every block is decided in three quarters of its size passes, which a scripted rule
// brings about whatever the weights. One JSON object a line. Error kUnsupported on a CPU, and for a model without
// blocks behind a cache.
void bench_blocks(LLM& llm, std::vector<int32_t> requests, int32_t input_len);

}  // namespace headrace::app
