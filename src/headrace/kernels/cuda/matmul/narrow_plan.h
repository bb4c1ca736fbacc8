// Which products of 3 to 64 rows go to the kernel of narrow_sm90.cuh, and how they are cut. Pure: shapes in, choice
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
  static constexpr int kFewest = 3, kMost = 64;  // rows
  static constexpr std::array kWidths = {16, 32, 64};
  static constexpr int kChunk = 64, kPieceChunks = 2, kPieceLen = kPieceChunks * kChunk;  // elements of `in`
  static constexpr int kBoxRows = 64, kBoxBytes = kBoxRows * kChunk * 2, kStageBoxes = 2;
  static constexpr int kUnitBytes = 16 * 8 * 4;         // sums that a warp has of 8 columns
  static constexpr int kParts = 16, kPartLen = kChunk;  // of matmul_parts.cuh; a block has four or more
  static constexpr int kRing = 200 << 10;               // of shared memory

  enum class Order : uint8_t {
    kRanges,  // a block's part of `in` is one range
    kParts,   // some of the parts of matmul_parts.cuh
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
  // Of a block: whose sums are summands of their own, where it is not alone.
  constexpr int parts() const { return order == Order::kParts ? kParts / blocks : 1; }
  constexpr int join_bytes() const { return (blocks > 1 ? blocks * parts() : 1) * share() * boxes * kUnitBytes; }
  constexpr int shared_bytes() const { return stages * (stage_bytes() + 16) + join_bytes() + 16; }
};

// Where it is faster than other kernels: docs/performance/products.md, "3 to 64 rows". Large weights are as fast by the
// library from 33 rows on, heads from 17 on. Fewer than 1024 were not measured. Strict mode has no library: it takes
// this kernel for all, though with 64 rows of small weights the ordered one is 5 % faster.
constexpr bool narrow_pays(const NarrowShape& s) {
  constexpr int64_t kFewestRows = 16, kFewRows = 32, kSmall = int64_t{20} << 20;
  constexpr int64_t kFewestOutputs = 1024, kHead = 65536;
  if (s.rows < NarrowPlan::kFewest || s.rows > NarrowPlan::kMost || s.out < kFewestOutputs) return false;
  if (s.strict) return s.in > int64_t{NarrowPlan::kPartLen} * (NarrowPlan::kParts - 1);  // no part may be empty
  if (s.out >= kHead) return s.rows <= kFewestRows;
  return s.rows <= kFewRows || s.weight_bytes() < kSmall;
}

constexpr int64_t narrow_tiles(const NarrowShape& s, int boxes) {
  const int64_t rows = int64_t{NarrowPlan::kBoxRows} * (s.combined ? 1 : boxes);
  return (s.out + rows - 1) / rows;
}

// Clusters that take the same number of tiles each, but for the last ones.
constexpr int narrow_clusters(int64_t tiles, int64_t at_once) {
  const int64_t rounds = (tiles + at_once - 1) / at_once;
  return static_cast<int>((tiles + rounds - 1) / rounds);
}

// Stages of the ring that there is room for beside the sums that blocks hand on.
constexpr int64_t stages_with_room(const NarrowPlan& plan) {
  return (NarrowPlan::kRing - plan.join_bytes() - 16) / (plan.stage_bytes() + 16);
}
// Stages that a block ever fills, at most.
constexpr int64_t stages_of_work(const NarrowShape& s, const NarrowPlan& plan) {
  const int64_t chunks = (s.in + NarrowPlan::kChunk - 1) / NarrowPlan::kChunk,
                of_block = s.strict ? (chunks + NarrowPlan::kParts - 1) / NarrowPlan::kParts * plan.parts()
                                    : (chunks + plan.blocks - 1) / plan.blocks + 1;
  const int64_t rounds = (narrow_tiles(s, plan.boxes) + plan.clusters - 1) / plan.clusters;
  return (of_block * plan.boxes + 1) / NarrowPlan::kStageBoxes * rounds;
}

// The least time: memory's at 4.28 TB/s, or that of a block's share of the weights at 55 bytes a ns, and 0.7 us where
// blocks hand their sums on, in strict mode 1.4.
constexpr void cut(const NarrowShape& s, int num_sms, NarrowPlan& plan) {
  constexpr int64_t kMemoryRate = 4280, kBlockRate = 55;  // bytes a ns
  constexpr int kMostBlocks = 4, kFewestStages = 3;
  const int64_t tiles = narrow_tiles(s, plan.boxes),
                pieces = (s.in + NarrowPlan::kPieceLen - 1) / NarrowPlan::kPieceLen;
  const int64_t piece_bytes = int64_t{NarrowPlan::kBoxRows} * plan.boxes * NarrowPlan::kPieceLen * 2;
  const int64_t hand_over = s.strict ? 1400 : 700;  // ns
  int64_t least = 0;
  NarrowPlan next = plan;
  for (int blocks = 1; blocks <= kMostBlocks && blocks <= pieces && blocks <= num_sms;
       blocks += s.strict ? blocks : 1) {
    const int64_t at_once = num_sms / blocks, rounds = (tiles + at_once - 1) / at_once;
    const int64_t of_block = piece_bytes * ((pieces + blocks - 1) / blocks) * rounds;
    const int64_t ns = std::max(s.weight_bytes() / kMemoryRate, of_block / kBlockRate) + (blocks > 1 ? hand_over : 0);
    next.blocks = blocks, next.clusters = narrow_clusters(tiles, at_once);
    if (blocks > 1 && (ns >= least || stages_with_room(next) < kFewestStages)) continue;
    least = ns, plan = next;
  }
  // No more than are used: the next kernel's blocks find room beside those of small weights.
  plan.stages = static_cast<int>(std::min(stages_with_room(plan), stages_of_work(s, plan)));
}

constexpr NarrowPlan plan_narrow(const NarrowShape& s, int num_sms) {
  NarrowPlan plan;
  if (!narrow_pays(s)) return plan;
  plan.order = s.strict ? NarrowPlan::Order::kParts : NarrowPlan::Order::kRanges;
  plan.width = s.rows <= 16 ? 16 : s.rows <= 32 ? 32 : 64;
  plan.boxes = s.combined ? 2 : 1;
  cut(s, num_sms, plan);
  return plan;
}

}  // namespace headrace::cuda
