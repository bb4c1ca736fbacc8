// Which products of 9 to 64 rows go to the kernel of narrow_sm90.cuh, and how they are cut. Pure: shapes in, choice
// out.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>

namespace headrace::cuda {

struct NarrowShape {
  int64_t rows, out, in;
  bool combined;  // silu(first) * second of two products of this shape
  bool strict;    // in the order of matmul_parts.cuh
  constexpr int64_t weight_bytes() const { return out * in * (combined ? 4 : 2); }
};

struct NarrowPlan {
  static constexpr int kFewest = 9, kMost = 64;  // rows
  static constexpr std::array kWidths = {16, 32, 64};
  static constexpr int kChunk = 64, kPieceChunks = 2, kPieceLen = kPieceChunks * kChunk;  // elements of `in`
  static constexpr int kBoxRows = 64, kBoxBytes = kBoxRows * kChunk * 2, kStageBoxes = 2;
  static constexpr int kUnitBytes = 16 * 8 * 4;  // sums that a warp has of 8 columns
  static constexpr int kParts = 8;               // of matmul_parts.cuh
  // Of shared memory: most of it, or half, for two blocks to a multiprocessor.
  static constexpr int kWholeRing = 200 << 10, kHalfRing = 110 << 10;

  enum class Order : uint8_t {
    kRanges,  // a block's part of `in` is one range
    kParts,   // a part of matmul_parts.cuh: every eighth piece of 128 elements
  } order = Order::kRanges;
  int width = 0;     // columns of a product: rows of x, and zeros; 0: another kernel is to do it
  int boxes = 1;     // of 64 rows of a weight in a tile
  int blocks = 1;    // of a cluster, each with a part of `in`
  int clusters = 0;  // of the grid
  int stages = 0;    // of a block's ring

  constexpr int stage_bytes() const { return kStageBoxes * kBoxBytes + kStageBoxes / boxes * width * kChunk * 2; }
  constexpr int units() const { return width / 2; }
  // Of a tile's units, that each block adds up, at most.
  constexpr int share() const { return (units() + blocks - 1) / blocks; }
  constexpr int join_bytes() const { return blocks * share() * boxes * kUnitBytes; }
  constexpr int shared_bytes() const { return stages * (stage_bytes() + 16) + join_bytes() + 16; }
};

// Where it is faster than other kernels: docs/performance/products.md, "9 to 64 rows". Large weights are as fast by the
// library from 33 rows on, heads from 17 on; in strict mode it takes weights of few rows, for which tiles of 192
// columns are too wide. Fewer than 1024 were not measured.
constexpr bool narrow_pays(const NarrowShape& s) {
  constexpr int64_t kFewestRows = 16, kFewRows = 32, kSmall = int64_t{20} << 20;
  constexpr int64_t kFewestOutputs = 1024, kFewOutputs = 2816, kHead = 65536;
  if (s.rows < NarrowPlan::kFewest || s.rows > NarrowPlan::kMost || s.out < kFewestOutputs) return false;
  if (s.strict) {  // and no part may be empty
    return !s.combined && s.out <= kFewOutputs && s.in > NarrowPlan::kPieceLen * (NarrowPlan::kParts - 1);
  }
  if (s.out >= kHead) return s.rows <= kFewestRows;
  return s.rows <= kFewRows || s.weight_bytes() < kSmall;
}

constexpr int64_t narrow_tiles(const NarrowShape& s, int boxes) {
  const int64_t rows = NarrowPlan::kBoxRows * (s.combined ? 1 : boxes);
  return (s.out + rows - 1) / rows;
}

// Clusters that take the same number of tiles each, but for the last ones.
constexpr int narrow_clusters(int64_t tiles, int64_t at_once) {
  const int64_t rounds = (tiles + at_once - 1) / at_once;
  return static_cast<int>((tiles + rounds - 1) / rounds);
}

// The least time: memory's at 4.28 TB/s, or that of a block's share of the weights at 55 bytes a ns, and 0.7 us where
// blocks hand their sums on.
constexpr void cut_in_ranges(const NarrowShape& s, int num_sms, NarrowPlan& plan) {
  constexpr int64_t kMemoryRate = 4280, kBlockRate = 55, kHandOver = 700;  // bytes a ns, and ns
  constexpr int kMostBlocks = 4;
  const int64_t tiles = narrow_tiles(s, plan.boxes),
                pieces = (s.in + NarrowPlan::kPieceLen - 1) / NarrowPlan::kPieceLen;
  const int64_t piece_bytes = NarrowPlan::kBoxRows * plan.boxes * NarrowPlan::kPieceLen * 2;
  int64_t least = 0;
  for (int blocks = 1; blocks <= kMostBlocks && blocks <= pieces && blocks <= num_sms; ++blocks) {
    const int64_t at_once = num_sms / blocks, rounds = (tiles + at_once - 1) / at_once;
    const int64_t of_block = piece_bytes * ((pieces + blocks - 1) / blocks) * rounds;
    const int64_t ns = std::max(s.weight_bytes() / kMemoryRate, of_block / kBlockRate) + (blocks > 1 ? kHandOver : 0);
    if (blocks > 1 && ns >= least) continue;
    least = ns, plan.blocks = blocks, plan.clusters = narrow_clusters(tiles, at_once);
  }
}

constexpr NarrowPlan plan_narrow(const NarrowShape& s, int num_sms) {
  NarrowPlan plan;
  if (num_sms < NarrowPlan::kParts || !narrow_pays(s)) return plan;
  plan.width = s.rows <= 16 ? 16 : s.rows <= 32 ? 32 : 64;
  plan.boxes = s.combined ? 2 : 1;
  if (s.strict) {
    plan.order = NarrowPlan::Order::kParts, plan.blocks = NarrowPlan::kParts;
    plan.clusters = narrow_clusters(narrow_tiles(s, plan.boxes), num_sms / plan.blocks);
  } else {
    cut_in_ranges(s, num_sms, plan);
  }
  const int ring = s.strict ? NarrowPlan::kHalfRing : NarrowPlan::kWholeRing;
  plan.stages = (ring - plan.join_bytes() - 16) / (plan.stage_bytes() + 16);
  return plan;
}

}  // namespace headrace::cuda
