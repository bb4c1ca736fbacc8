// Counter-based random numbers: functions of a request's seed, a position and a step. Host and device share them, so a
// request draws the same numbers wherever it runs.
#pragma once
#include <cstdint>

#include "headrace/batch/key_span.h"

namespace headrace {

// Returns a number in [0, 1) that depends on the three arguments only. Source: SplitMix64.
HR_HOST_DEVICE inline double uniform(uint64_t seed, int64_t position, int32_t step) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(position) + 1) +
               0xd1342543de82ef95u * static_cast<uint64_t>(step);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// Returns a random token, uniform in [0, vocab), as noise. Uses a separate random stream: seed xor "noise".
inline int32_t noise_token(uint64_t seed, int64_t position, int32_t step, int32_t vocab) {
  constexpr uint64_t kNoise = 0x6e6f697365;
  return static_cast<int32_t>(uniform(seed ^ kNoise, position, step) * vocab);
}

// Returns a number in [0, 1) by which positions are ranked at random. Uses a third random stream: seed xor "order".
inline double order_number(uint64_t seed, int64_t position, int32_t step) {
  constexpr uint64_t kOrder = 0x6f72646572;
  return uniform(seed ^ kOrder, position, step);
}

}  // namespace headrace
