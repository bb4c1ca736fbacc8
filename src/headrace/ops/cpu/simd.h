// Float vectors of a variant's widest size, as GCC vector types: the same source serves every ISA variant. For kernel
// sources only: internal linkage in every variant.
#pragma once
#ifdef __F16C__
#include <immintrin.h>
#endif
#include <stdint.h>

#include "headrace/ops/cpu/convert.h"

namespace headrace::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef float VecInMemory __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t BitsVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));
typedef uint16_t HalfVecInMemory __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

[[gnu::always_inline]] inline long round_up_to_lanes(long n) { return (n + kLanes - 1) / kLanes * kLanes; }

[[gnu::always_inline]] inline Vec load(const float* from) { return *reinterpret_cast<const VecInMemory*>(from); }
[[gnu::always_inline]] inline void store(float* to, Vec value) { *reinterpret_cast<VecInMemory*>(to) = value; }

// Rounds to the nearest integer, ties to even.
[[gnu::always_inline]] inline IntVec round_to_int(Vec v) {
#if defined(__AVX512F__)
  return reinterpret_cast<IntVec>(_mm512_maskz_cvtps_epi32(0xffff, reinterpret_cast<__m512>(v)));
#elif defined(__AVX2__)
  return reinterpret_cast<IntVec>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(v)));
#else
  IntVec result;
  for (int i = 0; i < kLanes; ++i) result[i] = static_cast<int32_t>(__builtin_lrintf(v[i]));
  return result;
#endif
}

[[gnu::always_inline]] inline float sum4(float a, float b, float c, float d) { return (a + c) + (b + d); }

// Returns the sum of all lanes, added as a tree.
[[gnu::always_inline]] inline float sum(Vec v) {
#if defined(__AVX512F__)
  typedef float Vec8 __attribute__((vector_size(32)));
  const Vec8 v8 = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                  __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  const auto v8 = v;
#endif
#if defined(__AVX2__)
  typedef float Vec4 __attribute__((vector_size(16)));
  const Vec4 v4 = __builtin_shufflevector(v8, v8, 0, 1, 2, 3) + __builtin_shufflevector(v8, v8, 4, 5, 6, 7);
#else
  const auto v4 = v8;
#endif
  return sum4(v4[0], v4[1], v4[2], v4[3]);
}

// exp(x), relative error below 2e-7; 0 below -87.3, saturates above 88.3 near the largest float; NaN stays NaN.
[[gnu::always_inline]] inline Vec exp(Vec x) {
  constexpr float kLowest = -87.3f, kHighest = 88.3f;
  const IntVec too_low = x < kLowest;
  Vec y = x < kLowest ? Vec{} + kLowest : x;
  y = y > kHighest ? Vec{} + kHighest : y;
  constexpr float kRound = 0x1.8p23f;  // adding and subtracting it rounds to an integer
  const Vec shifted = y * 1.44269504f + kRound;
  const Vec n = shifted - kRound;
  Vec r = y - n * 0.693359375f;  // ln 2 in two parts
  r = r - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `shifted` are n. NaN lanes, including unused ones, may hold any bits; unsigned arithmetic keeps the
  // addition defined.
  const BitsVec exponent = reinterpret_cast<BitsVec>(shifted) << 23;
  const Vec result = reinterpret_cast<Vec>(reinterpret_cast<BitsVec>(p) + exponent);
  return x != x ? x : too_low ? Vec{} : result;
}

[[gnu::always_inline]] inline Vec load_halves(const uint16_t* from, FloatType type) {
  const HalfVec bits = *reinterpret_cast<const HalfVecInMemory*>(from);
  if (type == FloatType::kBF16) return reinterpret_cast<Vec>(__builtin_convertvector(bits, BitsVec) << 16);
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(bits)));
#elif defined(__F16C__)
  return reinterpret_cast<Vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
#else
  Vec value;
  for (int i = 0; i < kLanes; ++i) value[i] = f16_to_f32(bits[i]);
  return value;
#endif
}

template <FloatType kType>
[[gnu::always_inline]] inline Vec load_as(const void* from, long i) {
  if constexpr (kType == FloatType::kF32) return load(static_cast<const float*>(from) + i);
  return load_halves(static_cast<const uint16_t*>(from) + i, kType);
}

[[gnu::always_inline]] inline void store_halves(uint16_t* to, Vec value, FloatType type) {
  HalfVec halves;
  if (type == FloatType::kBF16) {
#if defined(__AVX512BF16__)
    halves = reinterpret_cast<HalfVec>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(value)));
#else
    const BitsVec u = reinterpret_cast<BitsVec>(value);
    const BitsVec rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const BitsVec quiet = (u >> 16) | 0x40u;
    halves = __builtin_convertvector((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded, HalfVec);
#endif
  } else {
#if defined(__AVX512F__)
    halves = reinterpret_cast<HalfVec>(
        _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(value), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    halves = reinterpret_cast<HalfVec>(_mm256_cvtps_ph(reinterpret_cast<__m256>(value), _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < kLanes; ++i) halves[i] = f32_to_f16(value[i]);
#endif
  }
  *reinterpret_cast<HalfVecInMemory*>(to) = halves;
}

// to[0, n) = from[first, first + n), converted.
[[gnu::always_inline]] inline void load_row(float* to, const void* from, long first, long n, FloatType type) {
  long i = 0;
  if (type == FloatType::kF32) {
    for (; i + kLanes <= n; i += kLanes) store(to + i, load(static_cast<const float*>(from) + first + i));
  } else {
    for (; i + kLanes <= n; i += kLanes) {
      store(to + i, load_halves(static_cast<const uint16_t*>(from) + first + i, type));
    }
  }
  for (; i < n; ++i) to[i] = load_float(from, first + i, type);
}

// to[first, first + n) = from[0, n), converted.
[[gnu::always_inline]] inline void store_row(void* to, long first, const float* from, long n, FloatType type) {
  long i = 0;
  if (type == FloatType::kF32) {
    for (; i + kLanes <= n; i += kLanes) store(static_cast<float*>(to) + first + i, load(from + i));
  } else {
    for (; i + kLanes <= n; i += kLanes) store_halves(static_cast<uint16_t*>(to) + first + i, load(from + i), type);
  }
  for (; i < n; ++i) store_float(to, first + i, type, from[i]);
}

}  // namespace
}  // namespace headrace::cpu
