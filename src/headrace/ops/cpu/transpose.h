// Transposes a square of vectors. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

// Interleaves the elements of two vectors within each 128 bits: their lower or upper halves.
[[gnu::always_inline]] inline Vec interleaved_low(const Vec& a, const Vec& b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
[[gnu::always_inline]] inline Vec interleaved_high(const Vec& a, const Vec& b) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

// Splits two vectors into the even 128-bit parts of both, and the odd ones.
[[gnu::always_inline]] inline void split_parts(Vec& first, Vec& second) {
  const Vec a = first, b = second;
#if defined(__AVX512F__)
  first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  second = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
#elif defined(__AVX2__)
  first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
  second = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#else
  (void)a, (void)b;
#endif
}

// Applies split_parts to all vectors kApart apart, then to those twice as far apart.
template <int kApart>
[[gnu::always_inline]] inline void split_all(Vec (&v)[kLanes]) {
  if constexpr (kApart < kLanes) {
#pragma GCC unroll 8
    for (int pair = 0; pair < kLanes / 2; ++pair) {
      const int i = pair / kApart * 2 * kApart + pair % kApart;
      split_parts(v[i], v[i + kApart]);
    }
    split_all<2 * kApart>(v);
  }
}

// Transposes: lane i of v[j] becomes lane j of v[i].
[[gnu::always_inline]] inline void transpose(Vec (&v)[kLanes]) {
#pragma GCC unroll 4
  for (int q = 0; q < kLanes; q += 4) {  // 4 x 4 blocks within 128 bits
    const Vec a = interleaved_low(v[q], v[q + 2]), b = interleaved_high(v[q], v[q + 2]),
              c = interleaved_low(v[q + 1], v[q + 3]), d = interleaved_high(v[q + 1], v[q + 3]);
    v[q] = interleaved_low(a, c), v[q + 1] = interleaved_high(a, c);
    v[q + 2] = interleaved_low(b, d), v[q + 3] = interleaved_high(b, d);
  }
  split_all<4>(v);
}

// Lane i is sum(v[i]), to the bit. Overwrites `v`.
[[gnu::always_inline]] inline Vec sums_of_lanes(Vec (&v)[kLanes]) {
  transpose(v);
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return v[0];
}

}  // namespace
}  // namespace headrace::cpu
