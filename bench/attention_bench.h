// Paged attention, 32/8 heads of 128, bf16.
#pragma once
#include "bench/report.h"

namespace headrace::bench {

// Decode of 8 requests with 8k tokens in pages of 64 in random order, grouped and a pass per query head; prefill of 4k
// causal tokens, layers in rotation.
void run_attention_bench(const BenchContext& context, const Report& report);

}  // namespace headrace::bench
