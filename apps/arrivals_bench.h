// An engine whose requests come and go all the time.
#pragma once
#include "headrace/llm/llm.h"

namespace headrace::app {

// Keeps so many requests of chat-like lengths running: whenever one ends, another one comes, whose prompt then runs in
// chunks beside the others' tokens. Prompts have half to one and a half times `input_len` tokens, outputs 64 to 192.
// Prints tokens in a second, the median step, and for how long the device waits for the host in a step (StepGaps).
// Error kInvalidArgument for a model that denoises, kOutOfMemory when the keys and states of so many do not fit.
void bench_arrivals(LLM& llm, int32_t requests, int32_t input_len);

}  // namespace headrace::app
