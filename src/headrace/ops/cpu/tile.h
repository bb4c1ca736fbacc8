// Register tiles of small float32 GEMMs. For kernel sources only.
#pragma once
#include <utility>

#include "headrace/ops/cpu/simd.h"

namespace headrace::cpu {
namespace {

// A tile of kTileRows x 2 vectors leaves registers for two vectors of B and a broadcast of A.
#if defined(__AVX512F__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif
constexpr int kTileVecs = 2;

// A operand: element (row, depth) is at[row * row_stride + depth * depth_stride].
struct TileA {
  const float* at;
  long row_stride, depth_stride;
};

template <int kVecs>
struct Tile {
  Vec acc[kTileRows][kVecs];

  [[gnu::always_inline]] inline void load_scaled(const float* from, long stride, const float scale) {
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kVecs; ++v) acc[r][v] = load(from + r * stride + v * kLanes) * scale;
    }
  }
  [[gnu::always_inline]] inline void save(float* to, long stride) const {
    for (int r = 0; r < kTileRows; ++r) {
      for (int v = 0; v < kVecs; ++v) store(to + r * stride + v * kLanes, acc[r][v]);
    }
  }
  // acc += a[:, 0:depth] b[0:depth, :]
  [[gnu::always_inline]] inline void multiply_add(TileA a, const float* b, long b_stride, long depth) {
    for (long d = 0; d < depth; ++d) {
      Vec row[kVecs];
      for (int v = 0; v < kVecs; ++v) row[v] = load(b + d * b_stride + v * kLanes);
      for (int r = 0; r < kTileRows; ++r) {
        const float x = a.at[r * a.row_stride + d * a.depth_stride];
        for (int v = 0; v < kVecs; ++v) acc[r][v] += x * row[v];
      }
    }
  }
};

// Calls body.operator()<kVecs>(column) for panels of columns that cover `columns` (whole vectors).
template <class Body>
[[gnu::always_inline]] inline void for_each_panel(long columns, Body body) {
  long c = 0;
  for (; c + kTileVecs * kLanes <= columns; c += kTileVecs * kLanes) body.template operator()<kTileVecs>(c);
  for (; c < columns; c += kLanes) body.template operator()<1>(c);
}

// c[rows, columns] = scale * c + a b, K = depth. Rows are rounded up to whole tiles; columns must be whole vectors.
struct Product {
  TileA a;
  const float* b;
  long b_stride;
  float* c;
  long c_stride, rows, columns, depth;
  float scale;
};

inline void multiply(const Product& m) {
  for_each_panel(m.columns, [&]<int kVecs>(long column) {
    for (long row = 0; row < m.rows; row += kTileRows) {
      Tile<kVecs> tile;
      if (m.scale == 0) {
        tile = {};
      } else {
        tile.load_scaled(m.c + row * m.c_stride + column, m.c_stride, m.scale);
      }
      tile.multiply_add({m.a.at + row * m.a.row_stride, m.a.row_stride, m.a.depth_stride}, m.b + column, m.b_stride,
                        m.depth);
      tile.save(m.c + row * m.c_stride + column, m.c_stride);
    }
  });
}

// Exchanges bit kBit of the row number with that of the lane number.
template <int kBit, int... kLane>
[[gnu::always_inline]] inline void exchange_rows_and_lanes(Vec (&rows)[kLanes], std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if ((i & kBit) != 0) continue;
    const Vec a = rows[i], b = rows[i + kBit];
    rows[i] = __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane : kLanes + kLane - kBit)...);
    rows[i + kBit] = __builtin_shufflevector(a, b, ((kLane & kBit) == 0 ? kLane + kBit : kLanes + kLane)...);
  }
}

[[gnu::always_inline]] inline void transpose_block(const float* from, long from_stride, float* to, long to_stride) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  Vec rows[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) rows[i] = load(from + i * from_stride);
  exchange_rows_and_lanes<1>(rows, kAll);
  exchange_rows_and_lanes<2>(rows, kAll);
  if constexpr (kLanes > 4) exchange_rows_and_lanes<4 % kLanes>(rows, kAll);
  if constexpr (kLanes > 8) exchange_rows_and_lanes<8 % kLanes>(rows, kAll);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) store(to + i * to_stride, rows[i]);
}

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < columns.
inline void transpose(const float* from, long from_stride, long rows, long columns, float* to, long to_stride) {
  for (long i = 0; i < rows; i += kLanes) {
    for (long j = 0; j < columns; j += kLanes) {
      if (i + kLanes <= rows && j + kLanes <= columns) {
        transpose_block(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
        continue;
      }
      for (long y = j; y < columns && y < j + kLanes; ++y) {
        for (long x = i; x < rows && x < i + kLanes; ++x) to[y * to_stride + x] = from[x * from_stride + y];
      }
    }
  }
}

}  // namespace
}  // namespace headrace::cpu
