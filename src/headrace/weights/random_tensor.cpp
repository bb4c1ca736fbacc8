#include "headrace/weights/random_tensor.h"

#include <algorithm>
#include <cmath>

#include "headrace/core/parallel.h"

namespace headrace {
namespace {

constexpr int64_t kChunk = int64_t{1} << 16;

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that scatters a counter over 64 bits.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

uint64_t stream_of(uint64_t seed, std::string_view name) {
  uint64_t hash = mix(seed);
  for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace

Tensor random_weight(uint64_t seed, std::string_view name, const Shape& shape, const RandomValues& values,
                     int threads) {
  Tensor out(DType::kBF16, shape);
  const int rank = shape.rank();
  const double fan_in = rank >= 2 ? static_cast<double>(std::max<int64_t>(shape[rank - 1], 1)) : 100.0;
  // A uniform value on [-w, w) has standard deviation w / sqrt(3).
  const double half_width = values.stddev.value_or(1.0 / std::sqrt(fan_in)) * std::sqrt(3.0);
  const auto scale = static_cast<float>(half_width / 32768.0);
  const auto offset = static_cast<float>(values.mean - half_width + half_width / 65536.0);
  const uint64_t stream = stream_of(seed, name);
  const int64_t count = shape.numel();
  auto* to = out.data_as<BF16>();
  parallel_for(threads, (count + kChunk - 1) / kChunk, [&](int64_t chunk) {
    const int64_t end = std::min(count, (chunk + 1) * kChunk);
    for (int64_t i = chunk * kChunk; i < end; i += 4) {
      const uint64_t bits = mix(stream ^ static_cast<uint64_t>(i));  // four values of 16 bits
      for (int64_t j = 0; j < std::min<int64_t>(4, end - i); ++j)
        to[i + j] = BF16(static_cast<float>((bits >> (16 * j)) & 0xffffu) * scale + offset);
    }
  });
  return out;
}

}  // namespace headrace
