// `headrace bench serve`: a server under load.
#pragma once
#include <optional>

#include "load_flags.h"
#include "model_flags.h"

namespace headrace::app {

// Prints one JSON object for each request rate: latencies, throughput, errors by status. Their names are those of
// vLLM's `bench serve` where it has them. Error kIo if no request of a rate was answered.
void bench_serve(const ModelFlags& model, const LoadFlags& load, int32_t input_len);

}  // namespace headrace::app
