// Deterministic random weights: a model's shape and speed without its files.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "headrace/core/tensor.h"

namespace headrace {

// Distribution of a random tensor: uniform around `mean`. Without a `stddev`, two or more dimensions get
// 1 / sqrt(last dimension), one dimension gets 0.1. Norms that multiply by their weight need mean 1.
struct RandomValues {
  double mean = 0;
  std::optional<double> stddev;
};

// A bf16 tensor whose values follow from (seed, name, index) alone, not from `threads`. Error kOutOfMemory.
Tensor random_weight(uint64_t seed, std::string_view name, const Shape& shape, const RandomValues& values, int threads);

}  // namespace headrace
