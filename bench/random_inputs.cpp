#include "bench/random_inputs.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace headrace::bench {
std::vector<int32_t> random_tokens(int64_t count, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

Tensor normal_values(DType dtype, const Shape& shape, double mean, double deviation, uint64_t seed) {
  Tensor values(dtype, shape);
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(mean, deviation);
  const int64_t drawn = std::min(values.numel(), kNormalPeriod);
  for (int64_t i = 0; i < drawn; ++i) set_element(values, i, normal(random));
  const auto bytes = static_cast<int64_t>(values.bytes()),
             period = kNormalPeriod * static_cast<int64_t>(size_of(dtype));
  auto* const begin = static_cast<char*>(values.data());
  for (int64_t at = period; at < bytes; at += period) {
    std::memcpy(begin + at, begin, static_cast<size_t>(std::min(period, bytes - at)));
  }
  return values;
}

}  // namespace headrace::bench
