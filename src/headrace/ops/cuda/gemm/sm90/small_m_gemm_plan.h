// Which products of 2 to 64 rows go to the kernel of small_m_gemm.cuh, and how they are cut. Pure: shapes in, choice
// out.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace headrace::cuda {

struct SmallMGemmShape {
  int64_t rows, out, in;
  bool combined;  // silu(first) * second of two products of this shape
  bool strict;    // in the order of gemm_common.cuh
  constexpr int64_t weight_bytes() const { return out * in * (combined ? 4 : 2); }
};

struct SmallMGemmPlan {
  static constexpr int kFewest = 2, kMost = 64;  // rows
  static constexpr int kFewestBoxRows = 16;
  static constexpr std::array kColumns = {48, 64, 80, 96};
  static constexpr int kChunk = 64, kStageChunks = 2;   // elements of `in`, and neighbours of a stage
  static constexpr int kUnitBytes = 16 * 8 * 4;         // sums that a warp has of 8 columns
  static constexpr int kParts = 16, kPartLen = kChunk;  // of gemm_common.cuh; a block has four or more
  static constexpr int kRing = 200 << 10;               // of shared memory

  enum class Order : uint8_t {
    kRanges,  // a block's part of `in` is one range
    kParts,   // some of the parts of gemm_common.cuh
  } order = Order::kRanges;
  int box_rows = 0;  // of x, and zeros: 16, 32 or 64; 0: another kernel is to do it
  int columns = 0;   // of a tile: rows of the weight, or of two that are combined, half of them each
  int weights = 1;
  int blocks = 1;    // of a cluster, each with a part of `in`
  int clusters = 0;  // of the grid
  int stages = 0;    // of a block's ring

  static_assert(std::ranges::all_of(kColumns, [](int c) { return c % 16 == 0; }));  // a unit of each of two weights

  // Parts whose sums a block has side by side, neighbours: as many as there are registers for.
  static constexpr int group_of(int columns) { return columns <= 64 ? 4 : 2; }
  // Rows of x are the 64 rows of a product, which leaves its columns to a tile's width. Few of them are its columns
  // instead, and a weight's rows its rows: the sooner done, the fewer. Of two weights, each has half of those rows then
  // and half of the warps: their sums meet in shared memory, which pays for the fewest rows of x only.
  static constexpr int kTurnedColumns = 64;
  static constexpr int most_turned_rows(int weights) { return 32 / weights; }
  // Of x, that are the columns; 0: they are the rows.
  constexpr int turned_rows() const {
    return columns == kTurnedColumns && box_rows <= most_turned_rows(weights) ? box_rows : 0;
  }
  // Of a tile, to compare plans: weights from memory, x from the L2 cache at half of that, and a product's columns. Two
  // weights gain less by turning round, as their sums meet: measured, not to be preferred.
  constexpr int cost() const {
    return turned_rows() > 0 && weights == 1 ? 2 * (columns + box_rows) : 3 * columns + box_rows;
  }
  constexpr int weight_columns() const { return columns / weights; }
  constexpr int stage_bytes() const { return kStageChunks * (columns + box_rows) * kChunk * 2; }
  constexpr int units() const { return box_rows / 16 * (weight_columns() / 8); }
  // Of a tile's units, that each block adds up, at most.
  constexpr int share() const { return (units() + blocks - 1) / blocks; }
  // Of a block: whose sums are summands of their own, but for the first block's.
  constexpr int parts() const { return order == Order::kParts ? kParts / blocks : 1; }
  // Sums that are added up to a result's. The first block adds up its parts itself, as they are the first ones.
  constexpr int summands() const { return (blocks - 1) * parts() + 1; }
  // Of sums that warps or blocks hand on: a block alone has some only where a warp has one weight's half of a unit.
  constexpr int join_bytes() const {
    const bool handed_on = blocks > 1 || (weights == 2 && turned_rows() > 0);
    return handed_on ? summands() * share() * weights * kUnitBytes : 0;
  }
  constexpr int shared_bytes() const { return stages * (stage_bytes() + 16) + join_bytes() + 16; }
};

// Where it is faster than other kernels: docs/performance/products.md, "2 to 64 rows". Heads of more than 32 rows are
// faster by the library; strict mode has none. Fewer outputs than 1024 were not measured.
constexpr bool small_m_gemm_pays(const SmallMGemmShape& s) {
  constexpr int64_t kFewRows = 32, kHead = int64_t{256} << 20, kFewestOutputs = 1024;
  if (s.rows < SmallMGemmPlan::kFewest || s.rows > SmallMGemmPlan::kMost || s.out < kFewestOutputs) return false;
  if (s.strict) return s.in > int64_t{SmallMGemmPlan::kPartLen} * (SmallMGemmPlan::kParts - 1);  // no part may be empty
  return s.rows <= kFewRows || s.weight_bytes() < kHead;
}

constexpr int64_t small_m_gemm_chunks(const SmallMGemmShape& s) {
  return (s.in + SmallMGemmPlan::kChunk - 1) / SmallMGemmPlan::kChunk;
}
constexpr int64_t small_m_gemm_tiles(const SmallMGemmShape& s, const SmallMGemmPlan& plan) {
  return (s.out + plan.weight_columns() - 1) / plan.weight_columns();
}
// Tiles that a block has a part of, at most.
constexpr int64_t small_m_gemm_rounds(const SmallMGemmShape& s, const SmallMGemmPlan& plan) {
  return (small_m_gemm_tiles(s, plan) + plan.clusters - 1) / plan.clusters;
}

// Clusters that take the same number of tiles each, but for the last ones.
constexpr int small_m_gemm_clusters(int64_t tiles, int64_t at_once) {
  const int64_t rounds = (tiles + at_once - 1) / at_once;
  return static_cast<int>((tiles + rounds - 1) / rounds);
}

// Stages of the ring that there is room for beside the sums that blocks hand on.
constexpr int64_t stages_with_room(const SmallMGemmPlan& plan) {
  return (SmallMGemmPlan::kRing - plan.join_bytes() - 16) / (plan.stage_bytes() + 16);
}
// Stages that a block fills for a tile, at most.
constexpr int64_t stages_of_tile(const SmallMGemmShape& s, const SmallMGemmPlan& plan) {
  const auto whole = [](int64_t x, int64_t of) { return (x + of - 1) / of; };
  const int64_t chunks = small_m_gemm_chunks(s);
  if (!s.strict) return whole(whole(chunks, SmallMGemmPlan::kStageChunks), plan.blocks);
  int64_t stages = 0;  // of the first block, which has as many as any
  const int group = SmallMGemmPlan::group_of(plan.columns);
  for (int part = 0; part < plan.parts(); part += group) {
    stages += whole(chunks - part, SmallMGemmPlan::kParts) * group / SmallMGemmPlan::kStageChunks;
  }
  return stages;
}

// Clusters that run at once with a block to a multiprocessor. Multiprocessors come in groups, whose sizes leave some of
// them out of clusters of four: cudaOccupancyMaxActiveClusters says 30 for an H200's 132.
constexpr int64_t clusters_at_once(int num_sms, int blocks) {
  return std::max<int64_t>(blocks > 2 ? num_sms * 10 / (11 * blocks) : num_sms / blocks, 1);
}

// The columns, of those that are allowed, with which a cluster of so many blocks costs least, of equals the most. None:
// no columns.
template <class Allowed>
constexpr SmallMGemmPlan cut(const SmallMGemmShape& s, int num_sms, int blocks, SmallMGemmPlan next,
                             const Allowed& allowed) {
  constexpr int kFewestStages = 3;
  SmallMGemmPlan best;
  int64_t least = 0;
  next.blocks = blocks;
  for (const int columns : SmallMGemmPlan::kColumns) {
    next.columns = columns;
    const int64_t stages = (small_m_gemm_chunks(s) + SmallMGemmPlan::kStageChunks - 1) /
                           SmallMGemmPlan::kStageChunks;  // one or more for each block
    if (blocks > stages || blocks > num_sms) continue;
    next.clusters = small_m_gemm_clusters(small_m_gemm_tiles(s, next), clusters_at_once(num_sms, blocks));
    const int64_t cost = small_m_gemm_rounds(s, next) * next.cost();
    if (stages_with_room(next) < kFewestStages || !allowed(next) || (least > 0 && cost > least)) continue;
    least = cost, best = next;
  }
  return best;
}

// Blocks that are alone where they keep four fifths of the multiprocessors busy, or seven tenths with few rows of x.
// Else clusters of four where all of them run at once: they leave some multiprocessors to the next kernel, which begins
// there. Else of two.
constexpr SmallMGemmPlan cut(const SmallMGemmShape& s, int num_sms, const SmallMGemmPlan& whole) {
  SmallMGemmPlan plan = cut(s, num_sms, 1, whole, [&](const SmallMGemmPlan& p) {
    return p.clusters * 10 >= num_sms * (p.turned_rows() > 0 ? 7 : 8);
  });
  if (plan.columns == 0) {
    plan = cut(s, num_sms, 4, whole,
               [&](const SmallMGemmPlan& p) { return p.columns >= 64 && small_m_gemm_rounds(s, p) == 1; });
  }
  for (int blocks = 2; plan.columns == 0; --blocks) {
    plan = cut(s, num_sms, blocks, whole, [](const SmallMGemmPlan&) { return true; });
  }
  // No more than are used: the next kernel's blocks find room beside those of small weights.
  plan.stages =
      static_cast<int>(std::min(stages_with_room(plan), stages_of_tile(s, plan) * small_m_gemm_rounds(s, plan)));
  return plan;
}

constexpr SmallMGemmPlan plan_small_m_gemm(const SmallMGemmShape& s, int num_sms) {
  SmallMGemmPlan plan;
  if (!small_m_gemm_pays(s)) return plan;
  plan.order = s.strict ? SmallMGemmPlan::Order::kParts : SmallMGemmPlan::Order::kRanges;
  plan.box_rows =
      std::max(SmallMGemmPlan::kFewestBoxRows, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(s.rows))));
  plan.weights = s.combined ? 2 : 1;
  return cut(s, num_sms, plan);
}

}  // namespace headrace::cuda
