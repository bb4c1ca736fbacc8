// GEMM y = x W^T by dot products on weights as stored. Decoding is bound by reading W: one row of W after another is
// one stream, prefetched a fixed distance ahead. More rows of x share each widened weight.
//
// A dot product has two vectors of partial sums, each in ascending order of K. They are added, then their lanes as a
// tree, then the tail: the same order for any number of rows, threads and blocks. For kernel sources only: internal
// linkage in every variant.
#pragma once
#include "headrace/ops/cpu/linear.h"
#include "headrace/ops/cpu/read_ahead.h"
#include "headrace/ops/cpu/transpose.h"

namespace headrace::cpu {
namespace {

// Elements of K per step: one vector of each part. A part of bf16 weights holds the even or the odd elements of a step,
// because a mask or a shift then widens them. A part of other weights holds the lower or the upper half.
constexpr long kDotStep = 2 * kLanes;

template <FloatType kType>
constexpr long kBytesPerWeight = kType == FloatType::kF32 ? 4 : 2;

typedef BitsVec BitsVecInMemory __attribute__((aligned(2), may_alias));

template <FloatType kType, int kPart>
[[gnu::always_inline]] inline Vec load_part(const void* weight, long i) {
  if constexpr (kType == FloatType::kBF16) {
    const BitsVec pairs = *reinterpret_cast<const BitsVecInMemory*>(static_cast<const uint16_t*>(weight) + i);
    return reinterpret_cast<Vec>(kPart == 0 ? pairs << 16 : pairs & 0xffff0000u);
  } else {
    return load_as<kType>(weight, i + kPart * kLanes);
  }
}

[[gnu::always_inline]] inline void split_even_odd(Vec& first, Vec& second) {
  const Vec a = first, b = second;
#if defined(__AVX512F__)
  first = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  second = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX2__)
  first = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
  second = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  first = __builtin_shufflevector(a, b, 0, 2, 4, 6);
  second = __builtin_shufflevector(a, b, 1, 3, 5, 7);
#endif
}

// to[in] = a row of x as float32, its whole steps in the order of parts.
template <FloatType kType>
void load_in_parts(float* to, const LinearParams& p, long row) {
  load_row(to, p.x, row * p.x_stride, p.in, p.x_type);
  if constexpr (kType != FloatType::kBF16) return;
  for (long k = 0; k + kDotStep <= p.in; k += kDotStep) {
    Vec even = load(to + k), odd = load(to + k + kLanes);
    split_even_odd(even, odd);
    store(to + k, even);
    store(to + k + kLanes, odd);
  }
}

// Sums elements behind the last whole step.
template <FloatType kType>
float dot_of_tail(const LinearParams& p, const float* x, long out) {
  float tail = 0;
  for (long k = p.in / kDotStep * kDotStep; k < p.in; ++k) {
    tail = __builtin_fmaf(x[k], load_float(p.weight, out * p.weight_stride + k, kType), tail);
  }
  return tail;
}

// Calls add(k) for every step of [0, depth), and prefetch(k) once for each cache line of weights. Lambdas must be
// inlined always: GCC drops calls of a function that only prefetches.
template <FloatType kType, class Add, class Prefetch>
[[gnu::always_inline]] inline void for_steps(long depth, Add add, Prefetch prefetch) {
  constexpr long kLine = 64 / kBytesPerWeight<kType>, kBlock = kLine > kDotStep ? kLine : kDotStep;
  long k = 0;
  for (; k + kBlock <= depth; k += kBlock) {
#pragma GCC unroll 2
    for (long line = 0; line < kBlock; line += kLine) prefetch(k + line);
#pragma GCC unroll 4
    for (long step = 0; step < kBlock; step += kDotStep) add(k + step);
  }
  for (; k < depth; k += kDotStep) add(k);
}

// GEMV: one stream of weights. With 1 or 2 KB prefetches come too late, 16 KB is no faster.
constexpr long kDotBytesAhead = 4096;

template <FloatType kType>
float dot_of_row(const LinearParams& p, const float* x, long out) {
  const char* const weight = static_cast<const char*>(p.weight) + out * p.weight_stride * kBytesPerWeight<kType>;
  Vec sum0 = {}, sum1 = {};
  for_steps<kType>(
      p.in / kDotStep * kDotStep,
      [&](long k) __attribute__((always_inline)) {
        sum0 += load(x + k) * load_part<kType, 0>(weight, k);
        sum1 += load(x + k + kLanes) * load_part<kType, 1>(weight, k);
      },
      [&](long k) __attribute__((always_inline)) { read_ahead(weight + k * kBytesPerWeight<kType> + kDotBytesAhead); });
  return sum(sum0 + sum1) + dot_of_tail<kType>(p, x, out);
}

// Computes outputs [out, out_end) of one row, at `x` in parts.
template <FloatType kType>
void multiply_row(const LinearParams& p, long row, long out, long out_end, const float* x) {
  for (; out < out_end; ++out) {
    const float bias = p.bias == nullptr ? 0.0f : load_float(p.bias, out, p.bias_type);
    store_float(p.y, row * p.y_stride + out, p.y_type, dot_of_row<kType>(p, x, out) + bias);
  }
}

// Small GEMMs. Rows of a group share each widened weight, up to six at a time. Blocks of K keep x of a group in half of
// the smallest first-level cache.
constexpr long kGroupRows = 8, kGroupOuts = 64, kGroupElements = 4096;
constexpr int kDotRows = 6;

// Outputs that tiles of a group compute at a time: about eight sums hide the latency of additions, and sums, weights
// and a vector of x fit the registers.
constexpr int outs_of_tile(long rows) {
#ifdef __AVX512F__
  return 4;
#else
  return rows <= 2 ? 4 : rows == 3 ? 3 : 2;
#endif
}

// GCC would load `v` again for each of its uses, and loads are what these loops have most of.
[[gnu::always_inline]] inline void keep_in_register(Vec& v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
}

// Partial sums of a group at one block of K.
struct DotBlock {
  const LinearParams& p;
  const float* x;  // rows `x_stride` apart, from the block's first element
  long x_stride, rows, out, k, depth;
  float* sums;  // [outs, kGroupRows, 2, kLanes]

  [[gnu::always_inline]] float* sums_of(long o, long row, int part) const {
    return sums + ((o * kGroupRows + row) * 2 + part) * kLanes;
  }
};

constexpr long kTilesAhead = 2;

// Weights to prefetch beside a tile: those `distance` elements behind its own. Each of `tiles` tiles of rows takes a
// share of every weight row, and each part takes half of the rows: in even steps, because bursts would delay loads.
struct DotAhead {
  long distance, tile, tiles;
};

// Adds one part of the products of kRows rows from `row` with kOuts outputs from `o`.
template <FloatType kType, int kPart, int kRows, int kOuts>
[[gnu::always_inline]] inline void add_part(const DotBlock& b, long row, long o, DotAhead ahead) {
  constexpr long kSize = kBytesPerWeight<kType>;
  const char* const weight = static_cast<const char*>(b.p.weight) + ((b.out + o) * b.p.weight_stride + b.k) * kSize;
  const long stride = b.p.weight_stride * kSize;
  const float* const x = b.x + row * b.x_stride + kPart * kLanes;
  constexpr int kAheadOuts = (kOuts + 1) / 2;
  const int slower = ahead.tiles == 1 ? 0 : 1;
  const char* const next =
      weight + kPart * kAheadOuts * stride + (ahead.distance + b.depth * ahead.tile / ahead.tiles) * kSize;
  Vec sum[kRows][kOuts];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOuts; ++i) sum[r][i] = b.k == 0 ? Vec{} : load(b.sums_of(o + i, row + r, kPart));
  }
  const auto add = [&](long k) __attribute__((always_inline)) {
    Vec w[kOuts];
    for (int i = 0; i < kOuts; ++i) w[i] = load_part<kType, kPart>(weight + i * stride, k);
    for (int r = 0; r < kRows; ++r) {
      Vec value = load(x + r * b.x_stride + k);
      keep_in_register(value);
      for (int i = 0; i < kOuts; ++i) sum[r][i] += value * w[i];
    }
  };
  for_steps<kType>(
      b.depth, add, [&](long k) __attribute__((always_inline)) {
        for (int i = 0; i < kAheadOuts; ++i) read_ahead(next + i * stride + (k >> slower) * kSize);
      });
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOuts; ++i) store(b.sums_of(o + i, row + r, kPart), sum[r][i]);
  }
}

// Adds both parts of the products of up to kRows rows.
template <FloatType kType, int kRows, int kOuts>
void add_tile(const DotBlock& b, long rows, long row, long o, DotAhead ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return add_tile<kType, kRows - 1, kOuts>(b, rows, row, o, ahead);
  }
  add_part<kType, 0, kRows, kOuts>(b, row, o, ahead);
  add_part<kType, 1, kRows, kOuts>(b, row, o, ahead);
}

template <FloatType kType, int kOuts>
void add_tiles(const DotBlock& b, long o, long distance) {
  constexpr int kMost = outs_of_tile(kDotRows) == kOuts || kOuts == 1 ? kDotRows : kOuts == 3 ? 3 : 2;
  const long tiles = (b.rows + kMost - 1) / kMost;  // one or two
  for (long tile = 0; tile < tiles; ++tile) {       // of nearly equal size
    const long row = b.rows * tile / tiles;
    add_tile<kType, kMost, kOuts>(b, b.rows * (tile + 1) / tiles - row, row, o,
                                  {.distance = distance, .tile = tile, .tiles = tiles});
  }
}

// Adds the products of a group with `outs` outputs at one block of K. `next` is the distance to the next block.
template <FloatType kType, int kOuts>
void add_block(const DotBlock& b, long outs, long next) {
  const long whole = outs / kOuts * kOuts;
  long o = 0;
  for (; o < whole; o += kOuts) {
    const long ahead = o + kTilesAhead * kOuts;
    const long distance = ahead < whole ? ahead - o : ahead - whole - o;
    add_tiles<kType, kOuts>(b, o, distance * b.p.weight_stride + (ahead < whole ? 0 : next));
  }
  for (; o < outs; ++o) add_tiles<kType, 1>(b, o, b.p.weight_stride);
}

// Writes outputs of one row from their sums.
template <FloatType kType>
void write_dots(const DotBlock& b, long row, long r, long outs) {
  float dots[kGroupOuts];
  for (long first = 0; first < outs; first += kLanes) {
    Vec v[kLanes] = {};
    for (int i = 0; i < kLanes && b.k > 0; ++i) {
      const long o = first + i < outs ? first + i : outs - 1;
      v[i] = load(b.sums_of(o, r, 0)) + load(b.sums_of(o, r, 1));
    }
    store(dots + first, sums_of_lanes(v));
  }
  for (long o = 0; o < outs && b.k < b.p.in; ++o) dots[o] += dot_of_tail<kType>(b.p, b.x + r * b.x_stride, b.out + o);
  for (long o = 0; o < outs && b.p.bias != nullptr; ++o) dots[o] += load_float(b.p.bias, b.out + o, b.p.bias_type);
  store_row(b.p.y, row * b.p.y_stride + b.out, dots, outs, b.p.y_type);
}

// Computes outputs [out, out + outs) of a group: rows [row, row + rows), at `x` in parts.
template <FloatType kType>
void multiply_group(const LinearParams& p, long row, long rows, long out, long outs, const float* x, float* sums) {
  const long whole = p.in / kDotStep * kDotStep, most = kGroupElements / rows / 64 * 64;
  DotBlock block = {.p = p, .x = x, .x_stride = p.in, .rows = rows, .out = out, .k = 0, .depth = 0, .sums = sums};
  for (; block.k < whole; block.k += block.depth) {
    block.x = x + block.k;
    block.depth = whole - block.k < most ? whole - block.k : most;
    switch (outs_of_tile(rows)) {
      case 2: add_block<kType, outs_of_tile(4)>(block, outs, block.depth); break;
      case 3: add_block<kType, outs_of_tile(3)>(block, outs, block.depth); break;
      default: add_block<kType, outs_of_tile(1)>(block, outs, block.depth); break;
    }
  }
  block.x = x;
  for (long r = 0; r < rows; ++r) write_dots<kType>(block, row + r, r, outs);
}

// Scratch memory of a task: sums of a group, and rows of x.
struct DotScratch {
  float *sums, *x;
  explicit DotScratch(float* scratch) : sums(scratch), x(scratch + kSums) {}
  static constexpr long kSums = kGroupOuts * kGroupRows * kDotStep;
  static long floats(long rows, long in) { return kSums + rows * in + kLanes; }
};

// Computes outputs [out, out_end) of rows [row, row_end).
template <FloatType kType>
void multiply_rows(const LinearParams& p, long row, long row_end, long out, long out_end, const DotScratch& scratch) {
  for (long r = row; r < row_end; ++r) load_in_parts<kType>(scratch.x + (r - row) * p.in, p, r);
  if (row_end - row == 1) return multiply_row<kType>(p, row, out, out_end, scratch.x);
  for (; out < out_end; out += kGroupOuts) {
    const long outs = out_end - out < kGroupOuts ? out_end - out : kGroupOuts;
    const float* x = scratch.x;
    for (long r = row; r < row_end; r += kGroupRows, x += kGroupRows * p.in) {
      multiply_group<kType>(p, r, row_end - r < kGroupRows ? row_end - r : kGroupRows, out, outs, x, scratch.sums);
    }
  }
}

}  // namespace
}  // namespace headrace::cpu
