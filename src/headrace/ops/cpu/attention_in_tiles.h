// Attention on AMX tiles of up to 16 query rows to a tile of keys that all rows see completely. K and V are loaded from
// the pool without packing. Scores are computed as K Q^T, so 16 rows of keys are an A operand as they are. A row of V
// is a B operand of pairs (even column, odd column) of one key. Its A operand holds probabilities paired with zeros:
// (p, 0) in rows that sum even columns, (0, p) in rows that sum odd ones.
//
// An infinity or NaN in V therefore makes its neighbour NaN too; the caller checks the sums for this. For kernel
// sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/attention_in_place.h"
#ifdef __AMX_BF16__
#include "headrace/ops/cpu/amx_tile.h"
#endif

namespace headrace::cpu {
namespace {

constexpr long kMaxRowsInTiles = 16, kTileEdge = 16, kTileWords = kTileEdge * kTileEdge;

#ifdef __AMX_BF16__
constexpr bool kReadsInTiles = true;

// Returns true if every 16 rows of the tile are evenly spaced, with one stride for the whole tile.
inline bool lies_in_steps(const char* const* row) {
  const auto at = [row](int i) { return reinterpret_cast<intptr_t>(row[i]); };
  const intptr_t step = at(1) - at(0);
  bool even = true;
  for (int i = 0; i < kKeyTile; ++i) even &= at(i) == at(i / kTileEdge * kTileEdge) + i % kTileEdge * step;
  return even;
}

// to[d / 2, 16]: queries as a B operand. Rows of `q` [16, d] past the last query must be zero.
inline void pair_queries(const uint16_t* q, long d, uint32_t* to) {
  for (long i = 0; i < d / 2; ++i) {
    for (long r = 0; r < kTileEdge; ++r) __builtin_memcpy(to + i * kTileEdge + r, q + r * d + 2 * i, sizeof(*to));
  }
}

// Prefetches the next tile: per step one cache line of each 16 rows of K and of V. These rows lie in different 4 KB
// pages, and memory is faster with several pages at once than one after another. Steps must be spread evenly over all
// other work: without prefetches memory idles, and too many at once delay loads.
struct TileAhead {
  const TileInPlace* tile;  // or null
  long row_bytes;           // the larger of K's and V's
  int row, end;             // within each 16 rows
  int per_tile, per_piece;  // steps per AMX tile load, and per unit of other work, times 256
  long at = 0;
  int due = 0;  // steps, times 256

  [[gnu::always_inline]] void beside(int steps) {
    if (tile == nullptr) return;
    for (due += steps; due >= 256; due -= 256) step();
  }
  void step() {
    if (row == end) return;
    for (int i = row; i < kKeyTile; i += kTileEdge) {  // absent rows are null
      read_ahead(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(tile->k[i]) + tile->k_offset + at));
      read_ahead(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(tile->v[i]) + tile->v_offset + at));
    }
    at += 64;
    if (at < row_bytes) return;
    at = 0;
    ++row;
  }
  void beside_tile() { beside(per_tile); }
  void beside_piece() { beside(per_piece); }
};

// Computes the scores of 16 keys with 16 query rows.
template <int kSums>
[[gnu::always_inline]] inline void score_tile(const TileInPlace& tile, int key, const uint32_t* q, long d,
                                              float* scores, TileAhead& ahead) {
  const char* const k = tile.k[key] + tile.k_offset;
  const long step = tile.k[key + 1] - tile.k[key];
  zero_tile<kSums>();
  for (long i = 0; i < d; i += 32) {
    ahead.beside_tile();
    load_tile<4 + kSums>(k + 2 * i, step);
    load_tile<6 + kSums>(q + i / 2 * kTileEdge, 4 * kTileEdge);
    multiply_tiles<kSums, 4 + kSums, 6 + kSums>();
  }
  store_tile<kSums>(scores, 4 * kTileEdge);
}

// to[4, 64] = columns [row, row + 4) of scores[64, 16].
inline void gather_scores(const float* scores, int row, float* to) {
  for (int key = 0; key < kKeyTile; key += kTileEdge) {
    Vec lane[4];  // lanes: keys 4 apart
    for (int j = 0; j < 4; ++j) {
      const float* const from = scores + (key + j) * kTileEdge + row;
      __m512 keys = _mm512_zextps128_ps512(_mm_loadu_ps(from));
      keys = _mm512_maskz_insertf32x4(0xffff, keys, _mm_loadu_ps(from + 4 * kTileEdge), 1);
      keys = _mm512_maskz_insertf32x4(0xffff, keys, _mm_loadu_ps(from + 8 * kTileEdge), 2);
      lane[j] = reinterpret_cast<Vec>(_mm512_maskz_insertf32x4(0xffff, keys, _mm_loadu_ps(from + 12 * kTileEdge), 3));
    }
    const auto low = [](Vec a, Vec b) {
      return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    };
    const auto high = [](Vec a, Vec b) {
      return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
    };
    const Vec even01 = low(lane[0], lane[2]), odd01 = low(lane[1], lane[3]);
    const Vec even23 = high(lane[0], lane[2]), odd23 = high(lane[1], lane[3]);
    store(to + key, low(even01, odd01));
    store(to + kKeyTile + key, high(even01, odd01));
    store(to + 2 * kKeyTile + key, low(even23, odd23));
    store(to + 3 * kKeyTile + key, high(even23, odd23));
  }
}

// Writes a row's 64 probabilities as words (p, 0) to `even` and (0, p) to `odd`. Each 16 keys go to a tile of their
// own, `step` words apart.
inline void spread_probabilities(const uint16_t* probabilities, long step, uint32_t* even, uint32_t* odd,
                                 TileAhead& ahead) {
  for (int key = 0; key < kKeyTile; key += kTileEdge, even += step, odd += step) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(probabilities + key));
    const __m512i words = _mm512_maskz_cvtepu16_epi32(0xffff, halves);
    ahead.beside_piece();
    _mm512_storeu_si512(even, words);
    _mm512_storeu_si512(odd, _mm512_maskz_slli_epi32(0xffff, words, 16));
  }
}

// Offset of a row's sums of odd columns from those of even ones: half a tile for up to 8 rows, else the next tile.
template <int kParts>
constexpr long kOddWords = kParts == 1 ? kTileWords / 2 : kTileWords;

// Sums 32 kBlocks columns in tiles 0 to kBlocks kParts - 1. probabilities: [4, kParts, 16, 16], one per 16 keys.
template <int kBlocks, int kParts>
[[gnu::always_inline]] inline void sum_values(const TileInPlace& tile, long column, const uint32_t* probabilities,
                                              TileAhead& ahead) {
  static_assert(kBlocks * kParts <= 4);
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  const auto block = [&]<int kBlock>(const char* v, long step) {
    if constexpr (kBlock < kBlocks) {
      ahead.beside_tile();
      constexpr int kValues = 6 + kBlock % 2;
      load_tile<kValues>(v + 64 * kBlock, step);
      multiply_tiles<kBlock * kParts, 4, kValues>();
      if constexpr (kParts == 2) multiply_tiles<kBlock * kParts + 1, 5, kValues>();
    }
  };
  for (int key = 0; key < kKeyTile; key += kTileEdge, probabilities += kParts * kTileWords) {
    const char* const v = tile.v[key] + tile.v_offset + 2 * column;
    const long step = tile.v[key + 1] - tile.v[key];
    load_tile<4>(probabilities, 4 * kTileEdge);
    if constexpr (kParts == 2) load_tile<5>(probabilities + kTileWords, 4 * kTileEdge);
    block.template operator()<0>(v, step);
    block.template operator()<1>(v, step);
    block.template operator()<2>(v, step);
    block.template operator()<3>(v, step);
  }
}

// Updates 32 kBlocks columns: out = out * rescale + probabilities * V.
template <int kBlocks, int kParts>
inline void add_values_in_tiles(const RowsInPlace& rows, const TileInPlace& tile, long column,
                                const uint32_t* probabilities, const float* rescale, TileAhead& ahead) {
  alignas(64) float sums[4 * kTileWords];
  sum_values<kBlocks, kParts>(tile, column, probabilities, ahead);
  store_tile<0>(sums, 4 * kTileEdge);
  if constexpr (kBlocks * kParts > 1) store_tile<1>(sums + kTileWords, 4 * kTileEdge);
  if constexpr (kBlocks * kParts > 2) store_tile<2>(sums + 2 * kTileWords, 4 * kTileEdge);
  if constexpr (kBlocks * kParts > 3) store_tile<3>(sums + 3 * kTileWords, 4 * kTileEdge);
  for (long r = 0; r < rows.count; ++r) {
    float* out = rows.out + r * rows.dv + column;
    for (int block = 0; block < kBlocks; ++block, out += 2 * kLanes) {
      const float* const from = sums + block * kParts * kTileWords + r * kTileEdge;
      const Vec even = load(from), odd = load(from + kOddWords<kParts>);
      const Vec first = __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
      const Vec second =
          __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
      ahead.beside_piece();
      store(out, load(out) * rescale[r] + first);
      store(out + kLanes, load(out + kLanes) * rescale[r] + second);
    }
  }
}

template <int kParts>
inline void attend_in_tiles(const RowsInPlace& rows, const TileInPlace& tile, SoftmaxRule rule, const uint32_t* q,
                            TileAhead ahead) {
  alignas(64) float scores[kKeyTile * kTileEdge], by_row[4 * kKeyTile], rescale[kTileEdge];
  alignas(64) uint32_t probabilities[kKeyTile / kTileEdge * kParts * kTileWords];
  for (int key = 0; key < kKeyTile; key += 2 * kTileEdge) {
    score_tile<0>(tile, key, q, rows.d, scores + key * kTileEdge, ahead);
    score_tile<1>(tile, key + kTileEdge, q, rows.d, scores + (key + kTileEdge) * kTileEdge, ahead);
  }
  for (long r = 0; r < rows.count; ++r) {
    ahead.beside_piece();
    if (r % 4 == 0) gather_scores(scores, static_cast<int>(r), by_row);
    alignas(64) uint16_t row[kKeyTile];
    rescale[r] = 1;
    const RowState state = {.largest = rows.largest + r, .sum = rows.sum + r, .rescale = rescale + r};
    soften_row(by_row + r % 4 * kKeyTile, ~uint64_t{0}, rule, state, row);
    uint32_t* const even = probabilities + r * kTileEdge;
    spread_probabilities(row, kParts * kTileWords, even, even + kOddWords<kParts>, ahead);
  }
  constexpr int kBlocks = 4 / kParts;
  long column = 0;
  for (; column + 32 * kBlocks <= rows.dv; column += 32 * kBlocks) {
    add_values_in_tiles<kBlocks, kParts>(rows, tile, column, probabilities, rescale, ahead);
  }
  for (; column < rows.dv; column += 32) {
    add_values_in_tiles<1, kParts>(rows, tile, column, probabilities, rescale, ahead);
  }
}

// q[d / 2, 16]: queries in pairs. Meanwhile prefetches part `part` of `parts` of `next`, which may be null.
inline void attend_in_tiles(const RowsInPlace& rows, const TileInPlace& tile, SoftmaxRule rule, const uint32_t* q,
                            const TileInPlace* next, long part, long parts) {
  const long row = kTileEdge * part / parts, end = kTileEdge * (part + 1) / parts;
  const long row_bytes = 2 * (rows.d > rows.dv ? rows.d : rows.dv), steps = (end - row) * row_bytes / 64;
  const long tiles = (rows.d + rows.dv) / 8, pieces = rows.count * (5 + rows.dv / 32);
  const TileAhead ahead = {.tile = next,
                           .row_bytes = row_bytes,
                           .row = static_cast<int>(row),
                           .end = static_cast<int>(end),
                           .per_tile = static_cast<int>(128 * steps / tiles),
                           .per_piece = static_cast<int>(128 * steps / pieces + 1)};
  if (rows.count <= kTileEdge / 2) return attend_in_tiles<1>(rows, tile, rule, q, ahead);
  attend_in_tiles<2>(rows, tile, rule, q, ahead);
}
#else
constexpr bool kReadsInTiles = false;
inline bool lies_in_steps(const char* const*) { return false; }
inline void pair_queries(const uint16_t*, long, uint32_t*) {}
inline void attend_in_tiles(const RowsInPlace&, const TileInPlace&, SoftmaxRule, const uint32_t*, const TileInPlace*,
                            long, long) {}
#endif

}  // namespace
}  // namespace headrace::cpu
