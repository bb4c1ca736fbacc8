// Decode steps of several requests at once.
#pragma once
#include <memory>
#include <span>

#include "headrace/llm/llm.h"

namespace headrace::app {

// Prints the seconds of a decode step of so many requests behind prompts of `input_len` tokens, and their tokens in a
// second: first with the most likely token of each, then with tokens drawn (temperature 0.7, top-k 20, top-p 0.95).
// Error kInvalidArgument for a model that denoises, kOutOfMemory when the keys and states of so many do not fit.
void bench_batch(LLM& llm, int32_t requests, int32_t input_len);

// Prints the tokens in a second of an engine for each LLM, all at once and each in a thread of its own, with an equal
// part of the requests, beside those of one engine with all requests. Likeliest tokens. There are as many requests as
// LLMs or more. Errors as bench_batch.
void bench_engines(std::span<const std::unique_ptr<LLM>> llms, int32_t requests, int32_t input_len);

}  // namespace headrace::app
