// Products of rows of x with a tile of packed weights. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/packed_products.h"
#include "headrace/ops/cpu/read_ahead.h"

namespace headrace::cpu {
namespace {

// Weights of one tile are one stream. A core that prefetches this far ahead of its loads reads at memory's speed.
constexpr long kBytesAhead = 2048;

[[gnu::always_inline]] inline void read_stream_ahead(const unsigned char* from, int bytes, long ahead) {
  for (int at = 0; at < bytes; at += 64) read_ahead(reinterpret_cast<const char*>(from) + ahead + at);
}

// Place of the codes of blocks: the weights, read from memory once, or a panel, unpacked. Or there are products
// already.
enum class Source { kMemory, kPanel, kProducts };

template <BlockFormat kFormat, Source kSource, int kRows>
struct BlockProducts {
  static constexpr PackedLayout kLayout = packed_layout(kFormat);
  // Codes of 8 bits need no unpacking.
  static constexpr bool kPanel = kSource == Source::kPanel && kLayout.code_bits != 8;
  using X = const XGroup* const (&)[kRows];
  using Sums = Vec (&)[kRows][kParts];
  // Bytes of a group in the panel, or in the products.
  static constexpr int kPanelStride = kSource == Source::kProducts ? kProductBytes : kPanelBytes;

  [[gnu::always_inline]] static auto group_of(const unsigned char* block, const unsigned char* panel, int group) {
    const unsigned char* const packed = block + kLayout.codes + kLayout.group_bytes * group;
    const unsigned char* const steps = block + kLayout.steps + 2 * kTileRows * group;
    if constexpr (kSource == Source::kMemory) read_stream_ahead(packed, kLayout.group_bytes, kBytesAhead);
    if constexpr (kSource == Source::kProducts) {
      return GroupProducts<kFormat>{.products = panel, .steps = steps};
    } else {
      return GroupCodes<kFormat, kPanel>{.codes = kPanel ? panel : packed, .steps = steps};
    }
  }

  // y += products of a block of 32 columns.
  [[gnu::always_inline]] static void add_small(const unsigned char* block, const unsigned char* panel, X x, Sums y) {
    Vec sums[kRows][kParts];
    group_sums(group_of(block, panel, 0), x, sums);
    for (int part = 0; part < kParts; ++part) {
      const Vec scale = load_scales(block, part);
      for (int r = 0; r < kRows; ++r) {
        y[r][part] = fma(sums[r][part], scale * broadcast(x[r]->scale), y[r][part]);
        if constexpr (kLayout.minima != 0)
          y[r][part] = fma(load_scales(block + kLayout.minima, part), broadcast(x[r]->scaled_sum), y[r][part]);
      }
    }
  }

  // y += products of a block of 256 columns.
  [[gnu::always_inline]] static void add_large(const unsigned char* block, const unsigned char* panel, X x, Sums y) {
    const XGroup* at[kRows];
    for (int r = 0; r < kRows; ++r) at[r] = x[r];
    Vec scaled[kRows][kParts] = {}, least[kRows][kParts] = {};
    for (int group = 0; group < kLayout.block_columns / kGroup; ++group, panel += kPanelStride) {
      const auto codes = group_of(block, panel, group);
      Vec sums[kRows][kParts];
      group_sums(codes, at, sums);
      for (int part = 0; part < kParts; ++part) {
        for (int r = 0; r < kRows; ++r) {
          scaled[r][part] = fma(sums[r][part], broadcast(at[r]->scale), scaled[r][part]);
          if constexpr (kLayout.minima != 0) {
            const Vec step = to_float(load_steps<kFormat>(codes.steps + kTileRows, part));
            least[r][part] = fma(step, broadcast(at[r]->scaled_sum), least[r][part]);
          }
        }
      }
      for (int r = 0; r < kRows; ++r) ++at[r];
    }
    for (int part = 0; part < kParts; ++part) {
      for (int r = 0; r < kRows; ++r) {
        y[r][part] = fma(load_scales(block, part), scaled[r][part], y[r][part]);
        if constexpr (kLayout.minima != 0)
          y[r][part] = fma(-load_scales(block + kLayout.minima, part), least[r][part], y[r][part]);
      }
    }
  }

  // sums[kRows, kTileRows] += products of `blocks` blocks. x: the rows' groups at the first block.
  static void add(const unsigned char* block, const unsigned char* panel, long blocks, const XGroup* const (&x)[kRows],
                  float* sums) {
    const XGroup* at[kRows];
    Vec y[kRows][kParts];
    for (int r = 0; r < kRows; ++r) {
      at[r] = x[r];
      for (int part = 0; part < kParts; ++part) y[r][part] = load(sums + r * kTileRows + part * kLanes);
    }
    constexpr int kGroups = kLayout.block_columns / kGroup;
    for (; blocks > 0; --blocks, block += kLayout.block_bytes, panel += kGroups * kPanelStride) {
      if constexpr (kGroups == 1) {
        add_small(block, panel, at, y);
      } else {
        add_large(block, panel, at, y);
      }
      for (int r = 0; r < kRows; ++r) at[r] += kGroups;
    }
    for (int r = 0; r < kRows; ++r) {
      for (int part = 0; part < kParts; ++part) store(sums + r * kTileRows + part * kLanes, y[r][part]);
    }
  }
};

// Rows of x whose sums fit the registers: each vector of weights is loaded, and unpacked, once for all of them.
constexpr int kRowsAtOnce = kLanes / 2;
constexpr long kMostFewRows = 8;  // for which unpacking a panel does not pay

// Adds products of `rows` rows of x, `x_stride` groups apart, kRows at once; what is left by half as many, and so on.
template <BlockFormat kFormat, Source kSource, int kRows>
void add_rows(const unsigned char* block, const unsigned char* panel, long blocks, long rows, const XGroup* x,
              long x_stride, float* sums) {
  for (; rows >= kRows; rows -= kRows, x += kRows * x_stride, sums += kRows * kTileRows) {
    const XGroup* xs[kRows];
    for (int r = 0; r < kRows; ++r) xs[r] = x + r * x_stride;
    BlockProducts<kFormat, kSource, kRows>::add(block, panel, blocks, xs, sums);
  }
  if constexpr (kRows > 1) {
    if (rows > 0) add_rows<kFormat, kSource, kRows / 2>(block, panel, blocks, rows, x, x_stride, sums);
  }
}

constexpr long kPanelGroups = 8;  // unpacked at once: 4 KB
constexpr long kMostRows = 64;    // of x that use a panel one after another
// Scratch of a task: a panel, products of all its groups (on AMX), and sums of the rows.
constexpr long kPanelFloats = kPanelGroups * kPanelBytes / 4,
               kProductFloats = kHasProducts ? kPanelGroups * kProductBytes / 4 : 0;
constexpr long kTaskFloats = kPanelFloats + kProductFloats + kMostRows * kTileRows;

#ifdef __AMX_INT8__
// Adds products of every 16 rows of x, and returns how many rows it added. The tiles are configured.
template <BlockFormat kFormat>
long add_by_products(const unsigned char* tile, const unsigned char* panel, long blocks, long rows, const XGroup* x,
                     long x_stride, float* scratch) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  if constexpr (kLayout.code_bits == 6) return 0;
  constexpr bool kIsUnpacked = kLayout.code_bits == 8;
  constexpr long kStride = kIsUnpacked ? kLayout.block_bytes : kPanelBytes;
  constexpr long kGroups = kLayout.block_columns / kGroup;
  const unsigned char* const codes = kIsUnpacked ? tile + kLayout.codes : panel;
  auto* const products = reinterpret_cast<unsigned char*>(scratch + kPanelFloats);
  float* const sums = scratch + kPanelFloats + kProductFloats;
  long row = 0;
  for (; row + kProductRows <= rows; row += kProductRows) {
    const XGroup* const first = x + row * x_stride;
    for (long i = 0; i < blocks * kGroups; ++i) {
      unsigned char* const to = products + i * kProductBytes;
      if (i % 2 == 0) {
        multiply_group<kFormat, 0>(codes + i * kStride, first + i, x_stride, to);
      } else {
        multiply_group<kFormat, 1>(codes + i * kStride, first + i, x_stride, to);
      }
    }
    for (int r = 0; r < kProductRows; r += kRowsAtOnce) {
      const XGroup* xs[kRowsAtOnce];
      for (int i = 0; i < kRowsAtOnce; ++i) xs[i] = first + (r + i) * x_stride;
      BlockProducts<kFormat, Source::kProducts, kRowsAtOnce>::add(tile, products + r * kProductRowBytes, blocks, xs,
                                                                  sums + (row + r) * kTileRows);
    }
  }
  return row;
}
#else
template <BlockFormat kFormat>
long add_by_products(const unsigned char*, const unsigned char*, long, long, const XGroup*, long, float*) {
  return 0;
}
#endif

template <BlockFormat kFormat>
void add_by_panels(const unsigned char* tile, long rows, const XGroup* x, long groups, float* scratch) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  constexpr long kGroups = kLayout.block_columns / kGroup, kBlocks = kPanelGroups / kGroups;
  auto* const panel = reinterpret_cast<unsigned char*>(scratch);
  configure_product_tiles();
  for (long group = 0; group < groups; group += kPanelGroups, tile += kBlocks * kLayout.block_bytes) {
    const long blocks = (groups - group < kPanelGroups ? groups - group : kPanelGroups) / kGroups;
    for (long i = 0; i < blocks * kGroups; ++i) {
      const unsigned char* const packed =
          tile + i / kGroups * kLayout.block_bytes + kLayout.codes + i % kGroups * kLayout.group_bytes;
      read_stream_ahead(packed, kLayout.group_bytes, kBlocks * kLayout.block_bytes);  // the next panel's
      if constexpr (kLayout.code_bits != 8) unpack_codes<kFormat>(packed, panel + i * kPanelBytes);
    }
    const long row = add_by_products<kFormat>(tile, panel, blocks, rows, x + group, groups, scratch);
    add_rows<kFormat, Source::kPanel, kRowsAtOnce>(tile, panel, blocks, rows - row, x + row * groups + group, groups,
                                                   scratch + kPanelFloats + kProductFloats + row * kTileRows);
  }
  release_tiles();
}

inline void write_tile(const PackedLinearParams& p, long row, long rows, long out, float* sums) {
  const long outs = p.out - out < kTileRows ? p.out - out : kTileRows;
  for (long r = row; r < row + rows; ++r, sums += kTileRows) {
    if (p.bias != nullptr) {
      for (long o = 0; o < outs; ++o) sums[o] += load_float(p.bias, out + o, p.bias_type);
    }
    // Scalar conversions: the vector one of AVX512BF16 drops subnormal values.
    for (long o = 0; o < outs; ++o) store_float(p.y, r * p.y_stride + out + o, p.y_type, sums[o]);
  }
}

// Rows [row, row + rows) of y in the columns of tile `tile`. x: the row's first group.
template <BlockFormat kFormat>
void multiply_tile(const PackedLinearParams& p, long tile, long row, long rows, const XGroup* x, float* scratch) {
  constexpr PackedLayout kLayout = packed_layout(kFormat);
  const long blocks = p.in / kLayout.block_columns;
  const unsigned char* const weights = p.weight + tile * blocks * kLayout.block_bytes;
  float* const sums = scratch + kPanelFloats + kProductFloats;
  for (long i = 0; i < rows * kTileRows; i += kLanes) store(sums + i, Vec{});
  if (rows <= kMostFewRows) {
    add_rows<kFormat, Source::kMemory, kRowsAtOnce>(weights, nullptr, blocks, rows, x, groups_of(p), sums);
  } else {
    add_by_panels<kFormat>(weights, rows, x, groups_of(p), scratch);
  }
  write_tile(p, row, rows, tile * kTileRows, sums);
}

}  // namespace
}  // namespace headrace::cpu
