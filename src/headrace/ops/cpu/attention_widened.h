// Attention of up to four query rows to a tile of bf16 keys in the pool, without bf16 dot products: K and V are widened
// to float32 in registers. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/attention_softmax.h"
#include "headrace/ops/cpu/attention_tile.h"
#include "headrace/ops/cpu/transpose.h"

namespace headrace::cpu {
namespace {

constexpr long kLine = 32;  // elements of a cache line; d and dv are multiples

[[gnu::always_inline]] inline Vec widened(const char* bf16) {
  return load_halves(reinterpret_cast<const uint16_t*>(bf16), FloatType::kBF16);
}

// scores[kRows, 64]. Keys are taken so many at a time that there is a sum for every lane. Prefetches K of `next`, which
// may be null.
template <int kRows>
void score_widened(const RowsInPlace& rows, const TileInPlace& tile, float* scores, const TileInPlace* next) {
  constexpr int kKeys = kLanes / (kRows + (kRows == 3 ? 1 : 0));
  for (int key = 0; key < kKeyTile; key += kKeys) {
    Vec sum[kLanes] = {};
    for (long line = 0; line < rows.d; line += kLine) {
      for (int i = 0; i < kKeys && next != nullptr; ++i) read_ahead(next->k[key + i] + next->k_offset + 2 * line);
      for (long d = line; d < line + kLine; d += kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; ++i) {
          const Vec k = widened(tile.k[key + i] + tile.k_offset + 2 * d);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) sum[r * kKeys + i] += load(rows.q + r * rows.d + d) * k;
        }
      }
    }
    alignas(64) float sums[kLanes];
    store(sums, sums_of_lanes(sum));
    for (int r = 0; r < kRows; ++r) {
      __builtin_memcpy(scores + r * kKeyTile + key, sums + r * kKeys, kKeys * sizeof(float));
    }
  }
}

// Updates kVecs vectors of columns: out = out * rescale + probabilities * V. Prefetches one cache line of each row of V
// of `next`, which may be null.
template <int kRows, int kVecs>
void add_values_widened(const RowsInPlace& rows, const TileInPlace& tile, long column, const float* probabilities,
                        const float* rescale, const TileInPlace* next) {
  Vec sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sum[r][v] = load(rows.out + r * rows.dv + column + v * kLanes) * rescale[r];
  }
  for (int key = 0; key < kKeyTile; ++key) {
    const char* const from = tile.v[key] + tile.v_offset + 2 * column;
    if (next != nullptr) read_ahead(next->v[key] + next->v_offset + 2 * column);
    for (int v = 0; v < kVecs; ++v) {
      const Vec value = widened(from + 2 * kLanes * v);
      for (int r = 0; r < kRows; ++r) sum[r][v] += probabilities[r * kKeyTile + key] * value;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) store(rows.out + r * rows.dv + column + v * kLanes, sum[r][v]);
  }
}

template <int kRows>
void attend_rows(const RowsInPlace& rows, const TileInPlace& tile, SoftmaxRule rule, const TileInPlace* next) {
  constexpr int kLineVecs = kLine / kLanes, kRowVecs = 8 / (kRows + (kRows == 3 ? 1 : 0));  // eight sums
  constexpr int kVecs = kLineVecs < kRowVecs ? kLineVecs : kRowVecs;
  alignas(64) float scores[kRows * kKeyTile], probabilities[kRows * kKeyTile];
  float rescale[kRows];
  score_widened<kRows>(rows, tile, scores, next);
  for (int r = 0; r < kRows; ++r) {
    rescale[r] = 1;
    const RowState state = {.largest = rows.largest + r, .sum = rows.sum + r, .rescale = rescale + r};
    soften_row(scores + r * kKeyTile, ~uint64_t{0}, rule, state, probabilities + r * kKeyTile);
  }
  for (long column = 0; column < rows.dv; column += kVecs * kLanes) {
    const TileInPlace* const line = column % kLine == 0 ? next : nullptr;  // once for each cache line
    add_values_widened<kRows, kVecs>(rows, tile, column, probabilities, rescale, line);
  }
}

}  // namespace
}  // namespace headrace::cpu
