// Element types of tensors, and the 8- and 16-bit floating-point values that C++20 on GCC 12 lacks.
#pragma once
#include <bit>
#include <cstdint>
#include <string_view>

#include "headrace/core/dtype_enum.h"

namespace headrace {

// Returns the name used by checkpoints and users: "float32", "bfloat16", ...
std::string_view name_of(DType dtype);
int64_t size_of(DType dtype);  // bytes per element

// bfloat16: the upper half of a float; conversion rounds to nearest, ties to even, NaN stays NaN.
struct BF16 {
  uint16_t bits = 0;

  BF16() = default;
  explicit BF16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

// IEEE binary16; conversion rounds to nearest, ties to even.
struct F16 {
  uint16_t bits = 0;

  F16() = default;
  explicit F16(float value) : bits(encode(value)) {}
  explicit operator float() const { return decode(bits); }

 private:
  static uint16_t encode(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {  // subnormal: let the float adder round
      const float scaled = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x3f000000u));
    }
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  static float decode(uint16_t h) {
    const uint32_t sign = (uint32_t{h} & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    if (rest < 0x400u) {
      const float magnitude = static_cast<float>(rest) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
  }
};

// FP8 of the OCP specification, "e4m3fn": 4 bits of exponent with a bias of 7, 3 of fraction, no infinity. Conversion
// rounds to nearest, ties to even, and saturates at 448, infinities too; NaN becomes 0x7f.
struct E4M3 {
  uint8_t bits = 0;

  E4M3() = default;
  explicit E4M3(float value) : bits(encode(value)) {}
  explicit operator float() const { return decode(bits); }

 private:
  static uint8_t encode(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fu;
    if (magnitude >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
    if (magnitude < 0x3c800000u) {  // subnormal: let the float adder round
      const float scaled = std::bit_cast<float>(magnitude) + 0x1p14f;
      return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(scaled) - 0x46800000u));
    }
    const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
    return static_cast<uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
  }
  static float decode(uint8_t code) {
    const uint32_t sign = (uint32_t{code} & 0x80u) << 24, rest = code & 0x7fu;
    if (rest == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (rest < 8u) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(rest) * 0x1p-9f));
    return std::bit_cast<float>(sign | ((rest << 20) + 0x3c000000u));
  }
};

// The DType of a C++ element type.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<E4M3> {
  static constexpr DType value = DType::kE4M3;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kI8;
};

}  // namespace headrace
