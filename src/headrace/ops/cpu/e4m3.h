// Converts rows of FP8 e4m3fn values to float and back, with the bits of headrace::E4M3, which defines the rounding.
// For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

typedef uint8_t E4M3Vec __attribute__((vector_size(kLanes)));
typedef uint8_t E4M3VecInMemory __attribute__((vector_size(kLanes), aligned(1), may_alias));

[[gnu::always_inline]] inline Vec e4m3_to_f32(BitsVec code) {
  const BitsVec rest = code & 0x7fu;
  const Vec subnormal = __builtin_convertvector(reinterpret_cast<IntVec>(rest), Vec) * 0x1p-9f;
  BitsVec bits = rest < 8u ? reinterpret_cast<BitsVec>(subnormal) : (rest << 20) + 0x3c000000u;
  bits = rest == 0x7fu ? BitsVec{} + 0x7fc00000u : bits;
  return reinterpret_cast<Vec>(bits | (code & 0x80u) << 24);
}

[[gnu::always_inline]] inline BitsVec f32_to_e4m3(Vec value) {
  const BitsVec u = reinterpret_cast<BitsVec>(value), magnitude = u & 0x7fffffffu;
  const BitsVec largest = BitsVec{} + 0x43e00000u, capped = magnitude < largest ? magnitude : largest;
  // The addition rounds subnormal results: at 2^14 a float's unit is 2^-9.
  const BitsVec subnormal = reinterpret_cast<BitsVec>(reinterpret_cast<Vec>(capped) + 0x1p14f) - 0x46800000u;
  const BitsVec normal = (capped + 0x7ffffu + ((capped >> 20) & 1u) - 0x3c000000u) >> 20;
  const BitsVec code = (capped < 0x3c800000u ? subnormal : normal) | (u >> 24 & 0x80u);
  return magnitude > 0x7f800000u ? BitsVec{} + 0x7fu : code;
}

[[gnu::always_inline]] inline float load_e4m3(const void* data, long i) {
  return e4m3_to_f32(BitsVec{} + static_cast<const uint8_t*>(data)[i])[0];
}

// to[0, n) = from[0, n), from float or FP8 values.
[[gnu::always_inline]] inline void load_pool_row(float* to, const void* from, long n, FloatType type) {
  if (type != FloatType::kE4M3) return load_row(to, from, 0, n, type);
  const auto* const codes = static_cast<const uint8_t*>(from);
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const E4M3Vec code = *reinterpret_cast<const E4M3VecInMemory*>(codes + i);
    store(to + i, e4m3_to_f32(__builtin_convertvector(code, BitsVec)));
  }
  for (; i < n; ++i) to[i] = load_e4m3(codes, i);
}

// to[0, n) = from[0, n) / scale.
[[gnu::always_inline]] inline void store_e4m3_row(uint8_t* to, const float* from, long n, float scale) {
  long i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const E4M3Vec code = __builtin_convertvector(f32_to_e4m3(load(from + i) / scale), E4M3Vec);
    *reinterpret_cast<E4M3VecInMemory*>(to + i) = code;
  }
  for (; i < n; ++i) to[i] = static_cast<uint8_t>(f32_to_e4m3(Vec{} + from[i] / scale)[0]);
}

// Rounds row[0, n) to `type`, in units of the pool: each value is divided by `scale`, which is 1 unless the type is
// FP8. The row must have room for whole vectors; values past n may change.
[[gnu::always_inline]] inline void round_row(float* row, long n, FloatType type, float scale) {
  if (type == FloatType::kF32) return;
  if (type == FloatType::kE4M3) {
    for (long i = 0; i < n; i += kLanes) store(row + i, e4m3_to_f32(f32_to_e4m3(load(row + i) / scale)));
    return;
  }
  for (long i = 0; i < n; ++i) {
    uint16_t rounded;
    store_float(&rounded, 0, type, row[i]);
    row[i] = load_float(&rounded, 0, type);
  }
}

}  // namespace
}  // namespace headrace::cpu
