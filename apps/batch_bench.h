// Decode steps of several requests at once.
#pragma once
#include "headrace/llm/llm.h"

namespace headrace::app {

// Prints the seconds of a decode step of so many requests behind prompts of `input_len` tokens, and their tokens in a
// second: first with the most likely token of each, then with tokens drawn (temperature 0.7, top-k 20, top-p 0.95).
// Error kInvalidArgument for a model that denoises, kOutOfMemory when the keys and states of so many do not fit.
void bench_batch(LLM& llm, int32_t requests, int32_t input_len);

}  // namespace headrace::app
