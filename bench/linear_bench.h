// GEMMs with quantised weights, and with bf16 ones beside them, in the shapes of Qwen3-0.6B.
#pragma once
#include "bench/report.h"

namespace headrace::bench {

// Packing of Q4_K; then products of 1 to 8 rows, counted against reading the weights, and of 128 and 512 rows. Matrices
// in rotation: no cache holds them.
void run_linear_bench(const BenchContext& context, const Report& report);

}  // namespace headrace::bench
