// Rows of x in int8, as products with packed weights take them. For kernel sources only: internal linkage in every
// variant.
#pragma once
#include "headrace/ops/cpu/packed_linear.h"
#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

constexpr int kGroup = static_cast<int>(kGroupColumns);

// 32 columns of a row: x = scale codes.
struct XGroup {
  int8_t codes[kGroup];
  float scale, scaled_sum;  // scaled_sum: scale sum, rounded
  int32_t sum;              // of the codes
  int16_t half_sums[2];     // of the first and the last 16 codes
};

[[gnu::always_inline]] inline long groups_of(const PackedLinearParams& p) { return p.in / kGroup; }

// Stores integers of 8 bits.
[[gnu::always_inline]] inline void store_bytes(int8_t* to, IntVec v) {
#if defined(__AVX512F__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(v)));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<int8_t>(v[i]);
#endif
}

// The largest magnitude's bits: as integers they order all magnitudes, NaN last.
[[gnu::always_inline]] inline uint32_t largest_bits(const float* values) {
  uint32_t largest = 0;
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, values[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

[[gnu::always_inline]] inline int sum_of_codes(const int8_t* codes) {
  int sum = 0;
  for (int i = 0; i < kGroup / 2; ++i) sum += codes[i];
  return sum;
}

inline void quantize_group(const float* values, XGroup& to) {
  constexpr uint32_t kInfinity = 0x7f800000u, kSmallest = 0x0d800000u;  // 2^-100: below it 127 / amax may overflow
  const uint32_t largest = largest_bits(values);
  if (largest < kSmallest || largest >= kInfinity) {
    to = {};
    if (largest >= kInfinity) to.scale = to.scaled_sum = __builtin_nanf("");
    return;
  }
  const float amax = __builtin_bit_cast(float, largest), inverse = 127.0f / amax;
  for (int i = 0; i < kGroup; i += kLanes) store_bytes(to.codes + i, round_to_int(load(values + i) * inverse));
  const int first = sum_of_codes(to.codes), last = sum_of_codes(to.codes + kGroup / 2);
  to.scale = amax / 127.0f;
  to.sum = first + last;
  to.scaled_sum = to.scale * static_cast<float>(to.sum);
  to.half_sums[0] = static_cast<int16_t>(first);
  to.half_sums[1] = static_cast<int16_t>(last);
}

// Quantises row `row` of x, in the matrix's order of columns.
inline void quantize_row(const PackedLinearParams& p, long row, XGroup* to) {
  for (long group = 0; group < groups_of(p); ++group) {
    long column = group * kGroup;
    if (p.column_order != nullptr)
      column = p.column_order[column / p.column_unit] * p.column_unit + column % p.column_unit;
    float values[kGroup];
    load_row(values, p.x, row * p.x_stride + column, kGroup, p.x_type);
    quantize_group(values, to[group]);
  }
}

}  // namespace
}  // namespace headrace::cpu
