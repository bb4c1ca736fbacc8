// Rows of int8 pools: codes to floats, and floats to codes by the formula of ops/store_kv.h. For kernel sources only:
// internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

// value = code * scale; code = value * inverse, rounded.
struct Int8Scale {
  float scale, inverse;
};

// Returns the bits of the largest magnitude among `largest` and values[0, n). As integers they order all magnitudes,
// NaN last.
[[gnu::always_inline]] inline int32_t largest_bits(const float* values, long n, int32_t largest) {
  IntVec most = IntVec{} + largest;
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const IntVec bits = reinterpret_cast<IntVec>(load(values + i)) & 0x7fffffff;
    most = bits > most ? bits : most;
  }
  for (int lane = 0; lane < kLanes; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  for (; i < n; ++i) {
    const int32_t bits = __builtin_bit_cast(int32_t, values[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

[[gnu::always_inline]] inline Int8Scale int8_scale(int32_t largest) {
  constexpr int32_t kInfinity = 0x7f800000, kSmallest = 0x0d800000;  // 2^-100: below it 127 / amax may overflow
  if (largest >= kInfinity) return {__builtin_nanf(""), 0};
  if (largest < kSmallest) return {0, 0};
  const float amax = __builtin_bit_cast(float, largest);
  return {amax / 127.0f, 127.0f / amax};
}

[[gnu::always_inline]] inline IntVec int8_codes(Vec values, Int8Scale s) {
  return s.inverse == 0 ? IntVec{} : round_to_int(values * s.inverse);
}

// to[0, n) = from[0, n) as codes.
[[gnu::always_inline]] inline void store_int8_row(int8_t* to, const float* from, long n, Int8Scale scale) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  typedef int8_t BytesInMemory __attribute__((vector_size(kLanes), aligned(1), may_alias));
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    *reinterpret_cast<BytesInMemory*>(to + i) = __builtin_convertvector(int8_codes(load(from + i), scale), Bytes);
  }
  for (; i < n; ++i) to[i] = static_cast<int8_t>(int8_codes(Vec{} + from[i], scale)[0]);
}

// Replaces row[0, n) by its codes and returns their scale. The row must have room for whole vectors; values past n may
// change.
[[gnu::always_inline]] inline float quantize_int8_row(float* row, long n) {
  const Int8Scale scale = int8_scale(largest_bits(row, n, 0));
  for (long i = 0; i < n; i += kLanes) {
    store(row + i, __builtin_convertvector(int8_codes(load(row + i), scale), Vec));
  }
  return scale.scale;
}

[[gnu::always_inline]] inline Vec int8_to_f32(const int8_t* codes) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  return __builtin_convertvector(reinterpret_cast<IntVec>(_mm512_maskz_cvtepi8_epi32(0xffff, bytes)), Vec);
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
  return __builtin_convertvector(reinterpret_cast<IntVec>(_mm256_cvtepi8_epi32(bytes)), Vec);
#else
  Vec value;
  for (int i = 0; i < kLanes; ++i) value[i] = codes[i];
  return value;
#endif
}

// to[0, n) = codes[0, n).
[[gnu::always_inline]] inline void load_int8_row(float* to, const int8_t* codes, long n) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, int8_to_f32(codes + i));
  for (; i < n; ++i) to[i] = codes[i];
}

}  // namespace
}  // namespace headrace::cpu
