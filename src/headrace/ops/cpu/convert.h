// Scalar conversions between float types. For kernel sources only: internal linkage in every variant.
#pragma once
#include <stdint.h>

#include "headrace/ops/cpu/float_type.h"

namespace headrace::cpu {
namespace {

[[gnu::always_inline]] inline float bf16_to_f32(uint16_t bits) {
  return __builtin_bit_cast(float, uint32_t{bits} << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN.
[[gnu::always_inline]] inline uint16_t f32_to_bf16(float value) {
  const uint32_t u = __builtin_bit_cast(uint32_t, value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

[[gnu::always_inline]] inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = (uint32_t{h} & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest < 0x400u) {
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(uint32_t, magnitude));
  }
  return __builtin_bit_cast(float, sign | ((rest << 13) + 0x38000000u));
}

[[gnu::always_inline]] inline uint16_t f32_to_f16(float value) {
  const uint32_t u = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    const float scaled = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, scaled) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

[[gnu::always_inline]] inline float load_float(const void* data, long i, FloatType type) {
  if (type == FloatType::kF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == FloatType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

[[gnu::always_inline]] inline void store_float(void* data, long i, FloatType type, float value) {
  if (type == FloatType::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] = type == FloatType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
}

}  // namespace
}  // namespace headrace::cpu
