// Integer products of 16 rows of x with a tile of packed weights, on AMX tiles. For kernel sources only: internal
// linkage in every variant.
#pragma once
#include "headrace/ops/cpu/packed_sums.h"
#ifdef __AMX_INT8__
#include "headrace/ops/cpu/amx_tile.h"
#endif

namespace headrace::cpu {
namespace {

constexpr int kProductRows = 16;  // rows of x

// Sums of code x over a group, int32 [kProductRows, kTileRows]. Q6_K has none: its groups have two steps, and tiles of
// half the depth are slower than dot products.
constexpr int kProductRowBytes = 4 * kTileRows, kProductBytes = kProductRows * kProductRowBytes;

template <BlockFormat kFormat>
struct GroupProducts {
  const unsigned char* products;  // from the first row of some on
  const unsigned char* steps;     // of blocks of 256 columns
};

#ifdef __AMX_INT8__

constexpr bool kHasProducts = true;

inline void configure_product_tiles() {
  TileShapes shapes;
  shapes.row_bytes[2] = shapes.row_bytes[3] = kGroup;  // x
  shapes.rows[4] = shapes.rows[5] = kWords;            // weights
  configure_tiles(shapes);
}

// codes: of a group, one a byte. x: the group of the first row; rows are `x_stride` groups apart. kSet: of tiles; two
// are used in turns, so that a product need not wait for the one before.
template <BlockFormat kFormat, int kSet>
[[gnu::always_inline]] inline void multiply_group(const unsigned char* codes, const XGroup* x, long x_stride,
                                                  unsigned char* products) {
  load_tile<2 + kSet>(x->codes, x_stride * static_cast<long>(sizeof(XGroup)));
  load_tile<4 + kSet>(codes, kWordBytes);
  zero_tile<kSet>();
  multiply_byte_tiles<kSet, 2 + kSet, 4 + kSet, packed_layout(kFormat).code_bits == 8>();
  store_tile<kSet>(products, kProductRowBytes);
}

// sums = for each row the integer sum over the group of step (code - offset) x. Every one is below 2^24: exact.
template <BlockFormat kFormat, int kRows>
[[gnu::always_inline]] inline void group_sums(const GroupProducts<kFormat>& group, const XGroup* const (&x)[kRows],
                                              Vec (&sums)[kRows][kParts]) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  for (int r = 0; r < kRows; ++r) {
    IntVec sum;
    __builtin_memcpy(&sum, group.products + r * kProductRowBytes, sizeof sum);
    sums[r][0] = to_float(sum - (IntVec{} + kLayout.code_offset * x[r]->sum));
    if constexpr (kLayout.steps != 0) sums[r][0] *= to_float(load_steps<kFormat>(group.steps, 0));
  }
}

#else

constexpr bool kHasProducts = false;

inline void configure_product_tiles() {}
inline void release_tiles() {}

#endif

}  // namespace
}  // namespace headrace::cpu
