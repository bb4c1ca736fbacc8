// GEMM y = x W^T with outputs in the vector lanes. A panel of weights is transposed and widened once and serves every
// row; no sum over lanes is left at the end. The order of a sum differs from the dot products of linear.cpp, but is the
// same for any number of rows and threads. For kernel sources only: internal linkage in every variant.
#pragma once
#include "headrace/ops/cpu/linear.h"
#include "headrace/ops/cpu/read_ahead.h"
#include "headrace/ops/cpu/transpose.h"

namespace headrace::cpu {
namespace {

constexpr int kPanelVecs = 2, kPanelOuts = kPanelVecs * kLanes;
#ifdef __AVX512F__
constexpr int kPanelRows = 12;  // rows times vectors of accumulators, plus those of a panel, fit 32 registers
#else
constexpr int kPanelRows = 6;  // fit 16 registers
#endif
// Half of a first-level cache with 8 lanes. Sums of this many products are added up in order.
constexpr long kPanelDepth = 256;

// Transposes weights [k, k + depth) of outputs [out, out + outs) to panel[depth, kPanelOuts]. Missing outputs repeat
// the last one.
template <FloatType kType>
void transpose_panel(const LinearParams& p, long out, long outs, long k, long depth, float* panel) {
  const auto at = [&](long o) { return (out + (o < outs ? o : outs - 1)) * p.weight_stride + k; };
  for (int first = 0; first < kPanelOuts; first += kLanes) {
    long i = 0;
    for (; i + kLanes <= depth; i += kLanes) {
      Vec v[kLanes];
#pragma GCC unroll 16
      for (int o = 0; o < kLanes; ++o) v[o] = load_as<kType>(p.weight, at(first + o) + i);
      transpose(v);
#pragma GCC unroll 16
      for (int j = 0; j < kLanes; ++j) store(panel + (i + j) * kPanelOuts + first, v[j]);
    }
    for (; i < depth; ++i) {
      for (int o = 0; o < kLanes; ++o)
        panel[i * kPanelOuts + first + o] = load_float(p.weight, at(first + o) + i, kType);
    }
  }
}

// Adds the products of kRows rows of x, kPanelDepth apart, with a panel to sums[kRows, kPanelOuts].
template <int kRows>
void add_products(const float* x, const float* panel, long depth, float* sums) {
  Vec sum[kRows][kPanelVecs] = {};
  for (long k = 0; k < depth; ++k) {
    const Vec w0 = load(panel + k * kPanelOuts), w1 = load(panel + k * kPanelOuts + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const Vec value =
          x[r * kPanelDepth + k] - Vec{};  // broadcast: subtracting zero is folded away, adding zero would not be
      sum[r][0] += value * w0;
      sum[r][1] += value * w1;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kPanelVecs; ++v) {
      float* to = sums + r * kPanelOuts + v * kLanes;
      store(to, load(to) + sum[r][v]);
    }
  }
}

// Calls add_products for up to kRows rows.
template <int kRows>
void add_products_of(long rows, const float* x, const float* panel, long depth, float* sums) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return add_products_of<kRows - 1>(rows, x, panel, depth, sums);
  }
  add_products<kRows>(x, panel, depth, sums);
}

inline void write_sums(const LinearParams& p, long row, long out, long outs, float* sums) {
  if (p.bias != nullptr) {
    for (long o = 0; o < outs; ++o) sums[o] += load_float(p.bias, out + o, p.bias_type);
  }
  store_row(p.y, row * p.y_stride + out, sums, outs, p.y_type);
}

// Most rows and outputs of a task. Its panels are processed one after another, each transposed once for all rows.
constexpr long kPanelTaskRows = 512, kPanelTaskOuts = 128;

// Scratch memory of a task: a panel, the matching slice of x, and sums.
struct PanelScratch {
  float *panel, *x, *sums;
  PanelScratch(float* scratch, long rows)
      : panel(scratch), x(panel + kPanelDepth * kPanelOuts), sums(x + rows * kPanelDepth) {}
  static constexpr long floats(long rows) { return kPanelDepth * kPanelOuts + rows * (kPanelDepth + kPanelTaskOuts); }
};

// Prefetches part `part` of `parts` of the weights of a panel. Always inlined: GCC drops calls of a function that only
// prefetches.
template <FloatType kType>
[[gnu::always_inline]] inline void read_panel_ahead(const LinearParams& p, long out, long k, long part, long parts) {
  constexpr long kSize = kType == FloatType::kF32 ? 4 : 2, kLines = kPanelDepth * kSize / 64;
  const char* const from = static_cast<const char*>(p.weight) + (out * p.weight_stride + k) * kSize;
  for (long line = kPanelOuts * kLines * part / parts; line < kPanelOuts * kLines * (part + 1) / parts; ++line) {
    read_ahead(from + line / kLines * p.weight_stride * kSize + line % kLines * 64);
  }
}

// Computes outputs [out, out_end) of rows [row, row + rows).
template <FloatType kType>
void panel_products(const LinearParams& p, long row, long rows, long out, long out_end, const PanelScratch& at) {
  const long tiles = (rows + kPanelRows - 1) / kPanelRows;
  const auto outs_at = [&](long first) { return out_end - first < kPanelOuts ? out_end - first : kPanelOuts; };
  for (long i = 0; i < rows * kPanelTaskOuts; i += kLanes) store(at.sums + i, Vec{});
  for (long k = 0; k < p.in; k += kPanelDepth) {
    const long depth = p.in - k < kPanelDepth ? p.in - k : kPanelDepth;
    for (long r = 0; r < rows; ++r) load_row(at.x + r * kPanelDepth, p.x, (row + r) * p.x_stride + k, depth, p.x_type);
    float* sums = at.sums;
    for (long first = out; first < out_end; first += kPanelOuts, sums += rows * kPanelOuts) {
      transpose_panel<kType>(p, first, outs_at(first), k, depth, at.panel);
      for (long tile = 0; tile < tiles; ++tile) {  // row tiles of nearly equal size
        const long begin = rows * tile / tiles, count = rows * (tile + 1) / tiles - begin;
        const bool last = first + kPanelOuts >= out_end;
        read_panel_ahead<kType>(p, last ? out : first + kPanelOuts, last ? k + depth : k, tile, tiles);
        add_products_of<kPanelRows>(count, at.x + begin * kPanelDepth, at.panel, depth, sums + begin * kPanelOuts);
      }
    }
  }
  float* sums = at.sums;
  for (long first = out; first < out_end; first += kPanelOuts) {
    for (long r = 0; r < rows; ++r, sums += kPanelOuts) write_sums(p, row + r, first, outs_at(first), sums);
  }
}

}  // namespace
}  // namespace headrace::cpu
