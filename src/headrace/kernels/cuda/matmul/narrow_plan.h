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
// library from 33 rows on. Fewer outputs than 1024 were not measured. Strict mode has no library: it takes this kernel
// for all, though with 64 rows of small weights the ordered one is 5 % faster.
constexpr bool narrow_pays(const NarrowShape& s) {
  constexpr int64_t kFewRows = 32, kSmall = int64_t{20} << 20, kFewestOutputs = 1024;
  if (s.rows < NarrowPlan::kFewest || s.rows > NarrowPlan::kMost || s.out < kFewestOutputs) return false;
  if (s.strict) return s.in > int64_t{NarrowPlan::kPartLen} * (NarrowPlan::kParts - 1);  // no part may be empty
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
// Stages that a block ever fills, or one more.
constexpr int64_t stages_of_work(const NarrowShape& s, const NarrowPlan& plan) {
  const int64_t chunks = (s.in + NarrowPlan::kChunk - 1) / NarrowPlan::kChunk,
                of_block = s.strict ? (chunks + NarrowPlan::kParts - 1) / NarrowPlan::kParts * plan.parts()
                                    : (chunks + plan.blocks - 1) / plan.blocks + 1;
  const int64_t rounds = (narrow_tiles(s, plan.boxes) + plan.clusters - 1) / plan.clusters;
  return (of_block * plan.boxes + 1) / NarrowPlan::kStageBoxes * rounds;
}

// Clusters that run at once with a block to a multiprocessor. Multiprocessors come in groups, whose sizes leave some of
// them out of clusters of four: cudaOccupancyMaxActiveClusters says 30 for an H200's 132.
constexpr int64_t clusters_at_once(int num_sms, int blocks) {
  return std::max<int64_t>(blocks > 2 ? num_sms * 10 / (11 * blocks) : num_sms / blocks, 1);
}

// What a plan takes, in ns: the longer of memory's time at 4.28 TB/s and a block's for its weights and rows of x at 48
// bytes a ns, and 0.7 us where blocks hand their sums on. In strict mode, where every part's sums are handed on and
// rings are shorter for it, a block's weights alone, at 55, 1.4 us, and 0.2 for the end of a tile.
constexpr int64_t narrow_ns(const NarrowShape& s, const NarrowPlan& plan) {
  constexpr int64_t kMemoryRate = 4280;
  const int64_t block_rate = s.strict ? 55 : 48, hand_over = s.strict ? 1400 : 700, end = s.strict ? 200 : 0;
  const int64_t pieces = (s.in + NarrowPlan::kPieceLen - 1) / NarrowPlan::kPieceLen,
                rounds = (narrow_tiles(s, plan.boxes) + plan.clusters - 1) / plan.clusters;
  const int64_t rows = int64_t{NarrowPlan::kBoxRows} * plan.boxes + (s.strict ? 0 : plan.width);
  const int64_t of_block = rows * NarrowPlan::kPieceLen * 2 * ((pieces + plan.blocks - 1) / plan.blocks) * rounds;
  return std::max(s.weight_bytes() / kMemoryRate, of_block / block_rate) + (plan.blocks > 1 ? hand_over : 0) +
         end * rounds;
}

// The fastest that there is room for.
constexpr void cut(const NarrowShape& s, int num_sms, NarrowPlan& plan) {
  constexpr int kMostBlocks = 4, kFewestStages = 3;
  const int64_t pieces = (s.in + NarrowPlan::kPieceLen - 1) / NarrowPlan::kPieceLen;
  NarrowPlan next = plan;
  int64_t least = 0;
  for (next.boxes = s.combined ? 2 : 1; next.boxes <= 2; ++next.boxes) {
    for (next.blocks = 1; next.blocks <= kMostBlocks && next.blocks <= std::min<int64_t>(pieces, num_sms);
         next.blocks *= 2) {
      next.clusters = narrow_clusters(narrow_tiles(s, next.boxes), clusters_at_once(num_sms, next.blocks));
      const int64_t ns = narrow_ns(s, next);
      if (least > 0 && (ns >= least || stages_with_room(next) < kFewestStages)) continue;
      least = ns, plan = next;
    }
  }
  // Hardly more than are used: the next kernel's blocks find room beside those of small weights.
  plan.stages = static_cast<int>(std::min(stages_with_room(plan), stages_of_work(s, plan)));
}

constexpr NarrowPlan plan_narrow(const NarrowShape& s, int num_sms) {
  NarrowPlan plan;
  if (!narrow_pays(s)) return plan;
  plan.order = s.strict ? NarrowPlan::Order::kParts : NarrowPlan::Order::kRanges;
  plan.width = s.rows <= 16 ? 16 : s.rows <= 32 ? 32 : 64;
  cut(s, num_sms, plan);
  return plan;
}

}  // namespace headrace::cuda
