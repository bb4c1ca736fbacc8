// Random inputs of benchmarks, the same in every run. Zeros and repeated values would flatter kernels and caches.
// bench/peers_gpu.py draws from the same distributions.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace::bench {

inline constexpr int64_t kNormalPeriod = 4194301;  // a prime: rows of any even width differ

// Returns `count` token ids, uniform in [0, vocab).
std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed);

// Returns a host tensor of normally distributed values, which repeat after kNormalPeriod elements.
Tensor normal_values(DType dtype, const Shape& shape, double mean = 0, double deviation = 1, uint64_t seed = 1);

}  // namespace headrace::bench
