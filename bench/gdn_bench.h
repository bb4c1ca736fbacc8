// Gated DeltaNet, 16/32 heads of 128, bf16 inputs, float32 states.
#pragma once
#include "bench/report.h"

namespace headrace::bench {

// Decode of 8 requests, layers' states in rotation; prefill of 4k tokens; the convolution of both.
void run_gdn_bench(const BenchContext& context, const Report& report);

}  // namespace headrace::bench
