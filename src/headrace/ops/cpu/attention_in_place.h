// Attention of a few query rows to a tile of keys that all rows see completely, on K and V in the pool: with bf16 dot
// products (VDPBF16PS), or widened to float32 (attention_widened.h). A packed copy would cost more than these rows'
// arithmetic. Sums over the head dimension are made lane by lane, not in ascending order as for packed tiles. For
// kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/attention_softmax.h"
#include "headrace/ops/cpu/attention_tile.h"
#ifndef __AVX512BF16__
#include "headrace/ops/cpu/attention_widened.h"
#endif

namespace headrace::cpu {
namespace {

// With more rows a packed copy pays off.
constexpr long kMaxRowsInPlace = 8;

#if defined(__AVX512BF16__)
// Vectors of scores and probabilities hold four keys of each row: lane 4 row + key.
[[gnu::always_inline]] inline Vec by_row(const float* of_rows, int rows) {
  const __m512i at = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m512 loaded = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1 << rows) - 1), of_rows);
  return reinterpret_cast<Vec>(_mm512_maskz_permutexvar_ps(0xffff, at, loaded));
}
[[gnu::always_inline]] inline void store_by_row(float* of_rows, int rows, Vec v) {
  const __m512i at = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
  const __m512 packed = _mm512_maskz_permutexvar_ps(0xffff, at, reinterpret_cast<__m512>(v));
  _mm512_mask_storeu_ps(of_rows, static_cast<__mmask16>((1 << rows) - 1), packed);
}

// Returns the dot products of four keys for each row, from their sums of 16 partial results.
template <int kRows>
[[gnu::always_inline]] inline Vec sums_of(const __m512 (&part)[kRows][4]) {
  Vec row[4] = {};
  for (int r = 0; r < kRows; ++r) {
    const auto& p = part[r];
    const Vec a = reinterpret_cast<Vec>(_mm512_maskz_unpacklo_ps(0xffff, p[0], p[1])) +
                  reinterpret_cast<Vec>(_mm512_maskz_unpackhi_ps(0xffff, p[0], p[1]));
    const Vec b = reinterpret_cast<Vec>(_mm512_maskz_unpacklo_ps(0xffff, p[2], p[3])) +
                  reinterpret_cast<Vec>(_mm512_maskz_unpackhi_ps(0xffff, p[2], p[3]));
    row[r] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
             __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  const auto halves = [](Vec a, Vec b) {  // lanes of 128 bits: [a0 + a2, a1 + a3, b0 + b2, b1 + b3]
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  };
  const Vec low = halves(row[0], row[1]), high = halves(row[2], row[3]);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

// scores[16][16]
template <int kRows>
[[gnu::always_inline]] inline void score_in_place(const RowsInPlace& rows, const TileInPlace& tile, float* scores,
                                                  const TileInPlace* next) {
  for (int key = 0; key < kKeyTile; key += 4, scores += kLanes) {
    __m512 part[kRows][4] = {};
    for (long d = 0; d < rows.d; d += 32) {
      __m512bh k[4];
      for (int i = 0; i < 4; ++i) {
        k[i] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(tile.k[key + i] + tile.k_offset + 2 * d));
        if (next != nullptr) read_ahead(next->k[key + i] + next->k_offset + 2 * d);
      }
      for (int r = 0; r < kRows; ++r) {
        const auto q = reinterpret_cast<__m512bh>(_mm512_loadu_si512(rows.q + r * rows.d + d));
        for (int i = 0; i < 4; ++i) part[r][i] = _mm512_dpbf16_ps(part[r][i], q, k[i]);
      }
    }
    store(scores, sums_of<kRows>(part));
  }
}

// Computes probabilities from the scores and updates the rows' state. rescale[16] are the factors for the previous
// sums.
inline void soften_in_place(const float* scores, SoftmaxRule rule, const RowsInPlace& rows, int num_rows,
                            uint16_t* probabilities, float* rescale) {
  constexpr int kVecs = kKeyTile / 4;
  Vec s[kVecs];
  Vec high = Vec{} - __builtin_inff();
  for (int i = 0; i < kVecs; ++i) {
    s[i] = load(scores + i * kLanes) * rule.scale;
    if (rule.logit_cap > 0) s[i] = rule.logit_cap * tanh(s[i] / rule.logit_cap);
    high = high > s[i] ? high : s[i];
  }
  high = larger(high, __builtin_shufflevector(high, high, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
  high = larger(high, __builtin_shufflevector(high, high, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  const Vec before = by_row(rows.largest, num_rows), largest = before > high ? before : high;
  const IntVec nothing = largest == Vec{} - __builtin_inff();  // all scores are -inf: treated as no visible key
  Vec total = {};
  for (int i = 0; i < kVecs; ++i) {
    const Vec p = nothing != 0 ? Vec{} : exp_below_0(s[i] - largest);
    total += p;
    store_probabilities(probabilities + i * kLanes, p);
  }
  total += __builtin_shufflevector(total, total, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  total += __builtin_shufflevector(total, total, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  const Vec keep = nothing != 0 ? Vec{} + 1.0f : exp(before - largest);
  store(rescale, keep);
  store_by_row(rows.sum, num_rows, by_row(rows.sum, num_rows) * keep + total);
  store_by_row(rows.largest, num_rows, largest);
}

// Updates 32 kVecs columns: out = out * rescale + probabilities * V.
template <int kRows, int kVecs>
[[gnu::always_inline]] inline void add_values_in_place(const RowsInPlace& rows, const TileInPlace& tile, long column,
                                                       const uint16_t* probabilities, const float* rescale,
                                                       const TileInPlace* next) {
  const __m512i low_index = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                             37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high_index = low_index + _mm512_set1_epi16(16);
  __m512 sum[kRows][2 * kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kVecs; ++v) {
      sum[r][v] = reinterpret_cast<__m512>(load(rows.out + r * rows.dv + column + v * kLanes) * rescale[4 * r]);
    }
  }
  for (int key = 0; key < kKeyTile; key += 2) {
    const char *const even = tile.v[key] + tile.v_offset + 2 * column, *const odd =
                                                                           tile.v[key + 1] + tile.v_offset + 2 * column;
    if (next != nullptr) {
      for (int v = 0; v < kVecs; ++v) {
        read_ahead(next->v[key] + next->v_offset + 2 * column + 64 * v);
        read_ahead(next->v[key + 1] + next->v_offset + 2 * column + 64 * v);
      }
    }
    __m512bh pair[2 * kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const __m512i a = _mm512_loadu_si512(even + 64 * v), b = _mm512_loadu_si512(odd + 64 * v);
      pair[2 * v] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(a, low_index, b));
      pair[2 * v + 1] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(a, high_index, b));
    }
    for (int r = 0; r < kRows; ++r) {
      int both;
      __builtin_memcpy(&both, probabilities + key / 4 * kLanes + 4 * r + key % 4, sizeof(both));
      const auto p = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
      for (int v = 0; v < 2 * kVecs; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], p, pair[v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kVecs; ++v) {
      store(rows.out + r * rows.dv + column + v * kLanes, reinterpret_cast<Vec>(sum[r][v]));
    }
  }
}

template <int kRows>
inline void attend_rows(const RowsInPlace& rows, const TileInPlace& tile, SoftmaxRule rule, const TileInPlace* next) {
  alignas(64) float scores[kKeyTile / 4 * kLanes], rescale[kLanes];
  alignas(64) uint16_t probabilities[kKeyTile / 4 * kLanes];
  score_in_place<kRows>(rows, tile, scores, next);
  soften_in_place(scores, rule, rows, kRows, probabilities, rescale);
  long column = 0;
  for (; column + 64 <= rows.dv; column += 64) {
    add_values_in_place<kRows, 2>(rows, tile, column, probabilities, rescale, next);
  }
  if (column < rows.dv) add_values_in_place<kRows, 1>(rows, tile, column, probabilities, rescale, next);
}

#endif

// Prefetches `next`, which may be null.
inline void attend_in_place(RowsInPlace rows, const TileInPlace& tile, SoftmaxRule rule, const TileInPlace* next) {
  for (;; next = nullptr) {
    switch (rows.count) {
      case 1: return attend_rows<1>(rows, tile, rule, next);
      case 2: return attend_rows<2>(rows, tile, rule, next);
      case 3: return attend_rows<3>(rows, tile, rule, next);
      case 4: return attend_rows<4>(rows, tile, rule, next);
      default: attend_rows<4>(rows, tile, rule, next);
    }
    rows.count -= 4;
    rows.q += 4 * rows.d;
    rows.out += 4 * rows.dv;
    rows.largest += 4;
    rows.sum += 4;
  }
}

}  // namespace
}  // namespace headrace::cpu
