// `headrace bench agent`: the turns of an agent.
#pragma once
#include "load_flags.h"
#include "model_flags.h"

namespace headrace::app {

// Prints one JSON object for each turn of conversations that grow as an agent's does: the milliseconds to its first
// token, beside those of a prompt that is as long as what the turn adds; then the largest ratio of the two. Medians of
// the conversations, which run one after another. Error kIo if a request fails.
void bench_agent(const ModelFlags& model, const LoadFlags& load, int32_t input_len);

}  // namespace headrace::app
