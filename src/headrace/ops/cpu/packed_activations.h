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

constexpr int kGroupVecs = kGroup / kLanes;

// Stores the integers of a group, which fit 8 bits.
[[gnu::always_inline]] inline void store_codes(int8_t* to, const IntVec (&v)[kGroupVecs]) {
#if defined(__AVX512F__)
  for (int i = 0; i < kGroupVecs; ++i) {
    const __m128i bytes = _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(v[i]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kLanes * i), bytes);
  }
#elif defined(__AVX2__)
  const __m256i low = _mm256_packs_epi32(reinterpret_cast<__m256i>(v[0]), reinterpret_cast<__m256i>(v[1])),
                high = _mm256_packs_epi32(reinterpret_cast<__m256i>(v[2]), reinterpret_cast<__m256i>(v[3]));
  const __m256i words = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs works on each 128 bits
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), words));
#else
  for (int i = 0; i < kGroup; ++i) to[i] = static_cast<int8_t>(v[i / kLanes][i % kLanes]);
#endif
}

// The largest lane, found as a tree.
[[gnu::always_inline]] inline int32_t largest_of(IntVec v) {
#if defined(__AVX512F__)
  typedef int32_t Vec8 __attribute__((vector_size(32)));
  const Vec8 low8 = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
             high8 = __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15), v8 = low8 > high8 ? low8 : high8;
#else
  const auto v8 = v;
#endif
#if defined(__AVX2__)
  typedef int32_t Vec4 __attribute__((vector_size(16)));
  const Vec4 low4 = __builtin_shufflevector(v8, v8, 0, 1, 2, 3), high4 = __builtin_shufflevector(v8, v8, 4, 5, 6, 7),
             v4 = low4 > high4 ? low4 : high4;
#else
  const auto v4 = v8;
#endif
  const int32_t a = v4[0] > v4[1] ? v4[0] : v4[1], b = v4[2] > v4[3] ? v4[2] : v4[3];
  return a > b ? a : b;
}

// The largest magnitude's bits: as integers they order all magnitudes, NaN last.
[[gnu::always_inline]] inline int32_t largest_bits(const Vec (&values)[kGroupVecs]) {
  IntVec largest = {};
  for (int i = 0; i < kGroupVecs; ++i) {
    const IntVec bits = reinterpret_cast<IntVec>(values[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest_of(largest);
}

[[gnu::always_inline]] inline void quantize_group(const Vec (&values)[kGroupVecs], XGroup& to) {
  constexpr int32_t kInfinity = 0x7f800000, kSmallest = 0x0d800000;  // 2^-100: below it 127 / amax may overflow
  const int32_t largest = largest_bits(values);
  if (largest < kSmallest || largest >= kInfinity) {
    to = {};
    if (largest >= kInfinity) to.scale = to.scaled_sum = __builtin_nanf("");
    return;
  }
  const float amax = __builtin_bit_cast(float, largest), inverse = 127.0f / amax;
  IntVec codes[kGroupVecs], halves[2] = {};
  for (int i = 0; i < kGroupVecs; ++i) {
    codes[i] = round_to_int(values[i] * inverse);
    halves[i / (kGroupVecs / 2)] += codes[i];
  }
  store_codes(to.codes, codes);
  const float first = sum(__builtin_convertvector(halves[0], Vec)), last = sum(__builtin_convertvector(halves[1], Vec));
  to.scale = amax / 127.0f;
  to.scaled_sum = to.scale * (first + last);  // the sums are integers: exact
  to.sum = static_cast<int32_t>(first + last);
  to.half_sums[0] = static_cast<int16_t>(first);
  to.half_sums[1] = static_cast<int16_t>(last);
}

template <FloatType kType>
void quantize_row_as(const PackedLinearParams& p, long row, XGroup* to) {
  for (long group = 0; group < groups_of(p); ++group) {
    long column = group * kGroup;
    if (p.column_order != nullptr)
      column = p.column_order[column / p.column_unit] * p.column_unit + column % p.column_unit;
    Vec values[kGroupVecs];
    for (int i = 0; i < kGroupVecs; ++i) values[i] = load_as<kType>(p.x, row * p.x_stride + column + kLanes * i);
    quantize_group(values, to[group]);
  }
}

// Quantises row `row` of x, in the matrix's order of columns.
inline void quantize_row(const PackedLinearParams& p, long row, XGroup* to) {
  switch (p.x_type) {
    case FloatType::kF32: return quantize_row_as<FloatType::kF32>(p, row, to);
    case FloatType::kBF16: return quantize_row_as<FloatType::kBF16>(p, row, to);
    case FloatType::kF16: return quantize_row_as<FloatType::kF16>(p, row, to);
    case FloatType::kE4M3:
    case FloatType::kI8: __builtin_unreachable();  // only in KV pools
  }
}

}  // namespace
}  // namespace headrace::cpu
