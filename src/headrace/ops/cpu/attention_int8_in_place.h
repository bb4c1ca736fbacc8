// Attention of a few query rows to a tile of keys that all rows see completely, on codes of int8 in the pool. Codes
// become float32 in registers. Sums over the head dimension are made lane by lane, not in ascending order as for packed
// tiles. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/attention_in_place.h"
#include "headrace/ops/cpu/int8_row.h"

namespace headrace::cpu {
namespace {

typedef float Vec4 __attribute__((vector_size(16)));

// Returns the sums of four vectors' lanes.
[[gnu::always_inline]] inline Vec4 sums_of_4(Vec a, Vec b, Vec c, Vec d) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  typedef float Vec8 __attribute__((vector_size(32)));
  const auto folded = [](Vec v) -> Vec8 {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
           __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  };
  const Vec8 a8 = folded(a), b8 = folded(b), c8 = folded(c), d8 = folded(d);
#else
  const Vec a8 = a, b8 = b, c8 = c, d8 = d;
#endif
  const auto ab = __builtin_shufflevector(a8, b8, 0, 8, 1, 9, 4, 12, 5, 13) +
                  __builtin_shufflevector(a8, b8, 2, 10, 3, 11, 6, 14, 7, 15);
  const auto cd = __builtin_shufflevector(c8, d8, 0, 8, 1, 9, 4, 12, 5, 13) +
                  __builtin_shufflevector(c8, d8, 2, 10, 3, 11, 6, 14, 7, 15);
  const auto abcd = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
                    __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  return __builtin_shufflevector(abcd, abcd, 0, 1, 2, 3) + __builtin_shufflevector(abcd, abcd, 4, 5, 6, 7);
#else
  const Vec ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Vec cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
#endif
}

[[gnu::always_inline]] inline void read_row_ahead(const char* row, long offset, long bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(row) + static_cast<uintptr_t>(offset);  // absent rows are null
  for (long i = 0; i < bytes; i += 64) read_ahead(reinterpret_cast<const char*>(at) + i);
}

// part[row][j] = lanes of the dot product of a query row with key[j], for two keys from kFirst on.
template <int kFirst, int kRows>
[[gnu::always_inline]] inline void score_two_keys(const float* q, long d, const int8_t* const (&key)[4],
                                                  Vec (&part)[kRows][4]) {
  Vec sum[kRows][2] = {};
  for (long i = 0; i < d; i += kLanes) {
    const Vec first = int8_to_f32(key[kFirst] + i), second = int8_to_f32(key[kFirst + 1] + i);
    for (int r = 0; r < kRows; ++r) {
      const Vec query = load(q + r * d + i);
      sum[r][0] += query * first;
      sum[r][1] += query * second;
    }
  }
  for (int r = 0; r < kRows; ++r) part[r][kFirst] = sum[r][0], part[r][kFirst + 1] = sum[r][1];
}

// scores[kRows, 64]
template <int kRows>
[[gnu::always_inline]] inline void score_int8(const float* q, long d, const TileInPlace& tile, float* scores,
                                              const TileInPlace* next) {
  for (int key = 0; key < kKeyTile; key += 4) {
    const int8_t* k[4];
    for (int i = 0; i < 4; ++i) {
      k[i] = reinterpret_cast<const int8_t*>(tile.k[key + i] + tile.k_offset);
      if (next != nullptr) read_row_ahead(next->k[key + i], next->k_offset, d);
    }
    Vec part[kRows][4];
    score_two_keys<0>(q, d, k, part);
    score_two_keys<2>(q, d, k, part);
    for (int r = 0; r < kRows; ++r) {
      const Vec4 sums = sums_of_4(part[r][0], part[r][1], part[r][2], part[r][3]);
      __builtin_memcpy(scores + r * kKeyTile + key, &sums, sizeof(sums));
    }
  }
}

// Updates kVecs vectors of columns: out = out * rescale + weights * V. Prefetches V of `next`, which may be null.
template <int kRows, int kVecs>
[[gnu::always_inline]] inline void add_int8_columns(const RowsInPlace& rows, const TileInPlace& tile, long column,
                                                    const float* weights, const float* rescale,
                                                    const TileInPlace* next) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = load(rows.out + r * rows.dv + column + v * kLanes) * rescale[r];
  }
  for (int key = 0; key < kKeyTile; ++key) {
    if (next != nullptr) read_row_ahead(next->v[key], next->v_offset, rows.dv);
    const auto* const codes = reinterpret_cast<const int8_t*>(tile.v[key] + tile.v_offset) + column;
    Vec value[kVecs];
    for (int v = 0; v < kVecs; ++v) value[v] = int8_to_f32(codes + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVecs; ++v) sum[r][v] += weights[r * kKeyTile + key] * value[v];
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(rows.out + r * rows.dv + column + v * kLanes, sum[r][v]);
  }
}

template <int kRows>
inline void attend_int8_rows(const RowsInPlace& rows, const float* q, const TileInPlace& tile, SoftmaxRule rule,
                             const TileInPlace* next) {
  alignas(64) float scores[kRows * kKeyTile], weights[kRows * kKeyTile], rescale[kRows];
  score_int8<kRows>(q, rows.d, tile, scores, next);
  for (int r = 0; r < kRows; ++r) {
    rescale[r] = 1;
    const RowState state = {.largest = rows.largest + r, .sum = rows.sum + r, .rescale = rescale + r};
    soften_row(scores + r * kKeyTile, ~uint64_t{0}, rule, state, weights + r * kKeyTile);
  }
  constexpr int kVecs = kRows <= 2 && kLanes <= 8 ? 4 : 2;
  for (long column = 0; column < rows.dv; column += kVecs * kLanes, next = nullptr) {
    add_int8_columns<kRows, kVecs>(rows, tile, column, weights, rescale, next);
  }
}

// q[rows, d]: queries in float32; rows.q is not read. `rule` holds the tile's scales. Prefetches `next`, which may be
// null.
inline void attend_int8_in_place(RowsInPlace rows, const float* q, const TileInPlace& tile, SoftmaxRule rule,
                                 const TileInPlace* next) {
  constexpr long kMost = 4;
  for (; rows.count > kMost; rows.count -= kMost, next = nullptr) {
    attend_int8_rows<kMost>(rows, q, tile, rule, next);
    q += kMost * rows.d;
    rows.out += kMost * rows.dv;
    rows.largest += kMost;
    rows.sum += kMost;
  }
  switch (rows.count) {
    case 1: return attend_int8_rows<1>(rows, q, tile, rule, next);
    case 2: return attend_int8_rows<2>(rows, q, tile, rule, next);
    case 3: return attend_int8_rows<3>(rows, q, tile, rule, next);
    default: return attend_int8_rows<4>(rows, q, tile, rule, next);
  }
}

}  // namespace
}  // namespace headrace::cpu
