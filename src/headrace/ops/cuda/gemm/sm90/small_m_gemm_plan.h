// Small-M GEMM (M from 1 to 64): which problems small_m_gemm.cuh takes, and how they are tiled. Pure: shapes in, choice
// out.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace headrace::cuda {

// M, N and K of a GEMM.
struct SmallMGemmShape {
  int64_t rows, out, in;
  bool combined;  // SwiGLU: silu(first) * second of two GEMMs of this shape
  bool strict;    // batch-invariant mode: the order of gemm_common.cuh
  constexpr int64_t weight_bytes() const { return out * in * (combined ? 4 : 2); }
};

struct SmallMGemmPlan {
  static constexpr int kFewest = 1, kMost = 64;  // M
  static constexpr int kFewestBoxRows = 16;
  static constexpr std::array kColumns = {48, 64, 80, 96};
  static constexpr int kChunk = 64, kStageChunks = 2;   // elements of K; chunks of a stage
  static constexpr int kUnitBytes = 16 * 8 * 4;         // sums of a warp for 8 columns
  static constexpr int kParts = 16, kPartLen = kChunk;  // K splits of gemm_common.cuh; a CTA has four or more
  static constexpr int kRing = 200 << 10;               // bytes of shared memory for the pipeline

  enum class Order : uint8_t {
    kRanges,  // split-K: a CTA has one range of K
    kParts,   // fixed-order split-K: a CTA has some of the splits of gemm_common.cuh
  } order = Order::kRanges;
  int box_rows = 0;  // of x in a TMA box, zeros included: 16, 32 or 64; 0: use another kernel
  int columns = 0;   // of a tile: rows of the weight, or for SwiGLU half as many of each
  int weights = 1;
  int blocks = 1;    // CTAs of a cluster; each has a part of K
  int clusters = 0;  // of the grid
  int stages = 0;    // of a CTA's pipeline

  static_assert(std::ranges::all_of(kColumns, [](int c) { return c % 16 == 0; }));  // 8 columns of each of two weights

  // K splits that a CTA sums side by side, neighbours: as many as there are registers for.
  static constexpr int group_of(int columns) { return columns <= 64 ? 4 : 2; }
  // Default: A = x (M = 64, padded), B = W, so the tile width is N of the MMA. For few rows of x the operands are
  // swapped (swap-AB: A = W, B = x), which is the faster the fewer rows there are. With swap-AB each weight of SwiGLU
  // has half of the 64 rows and half of the warps. Their sums meet in shared memory, which pays for the fewest rows of
  // x only.
  static constexpr int kTurnedColumns = 64;
  static constexpr int most_turned_rows(int weights) { return 32 / weights; }
  // N of the MMA with swap-AB: rows of x and zeros. 0: not swapped.
  constexpr int turned_rows() const {
    return columns == kTurnedColumns && box_rows <= most_turned_rows(weights) ? box_rows : 0;
  }
  // Relative cost of a tile, to compare plans: weights from memory, x from the L2 at half of that, and N of the MMA.
  // SwiGLU gains less from swap-AB, as its sums meet: measured, not to be preferred.
  constexpr int cost() const {
    return turned_rows() > 0 && weights == 1 ? 2 * (columns + box_rows) : 3 * columns + box_rows;
  }
  constexpr int weight_columns() const { return columns / weights; }
  constexpr int stage_bytes() const { return kStageChunks * (columns + box_rows) * kChunk * 2; }
  constexpr int units() const { return box_rows / 16 * (weight_columns() / 8); }
  // Most units of a tile that one CTA adds up.
  constexpr int share() const { return (units() + blocks - 1) / blocks; }
  // K splits of a CTA. Each is a summand of its own, except those of the first CTA.
  constexpr int parts() const { return order == Order::kParts ? kParts / blocks : 1; }
  // Summands of a result. The first CTA adds its splits itself, as they are the first ones.
  constexpr int summands() const { return (blocks - 1) * parts() + 1; }
  // Bytes of the sums that warps or CTAs exchange. A single CTA has some only for swap-AB SwiGLU, where a warp has one
  // weight's half of a unit.
  constexpr int join_bytes() const {
    const bool handed_on = blocks > 1 || (weights == 2 && turned_rows() > 0);
    return handed_on ? summands() * share() * weights * kUnitBytes : 0;
  }
  constexpr int shared_bytes() const { return stages * (stage_bytes() + 16) + join_bytes() + 16; }
};

// Heuristic: returns true if it beats other kernels: docs/design/gemm.md. LM heads with M > 32
// are faster by cuBLASLt, which batch-invariant mode does not use. N below 1024 was not measured.
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
// Most tiles that a cluster takes.
constexpr int64_t small_m_gemm_rounds(const SmallMGemmShape& s, const SmallMGemmPlan& plan) {
  return (small_m_gemm_tiles(s, plan) + plan.clusters - 1) / plan.clusters;
}

// Returns the clusters of the grid: all take the same number of tiles, except the last ones.
constexpr int small_m_gemm_clusters(int64_t tiles, int64_t at_once) {
  const int64_t rounds = (tiles + at_once - 1) / at_once;
  return static_cast<int>((tiles + rounds - 1) / rounds);
}

// Pipeline stages that fit beside the sums that CTAs exchange.
constexpr int64_t stages_with_room(const SmallMGemmPlan& plan) {
  return (SmallMGemmPlan::kRing - plan.join_bytes() - 16) / (plan.stage_bytes() + 16);
}
// Most stages that a CTA fills for a tile.
constexpr int64_t stages_of_tile(const SmallMGemmShape& s, const SmallMGemmPlan& plan) {
  const auto whole = [](int64_t x, int64_t of) { return (x + of - 1) / of; };
  const int64_t chunks = small_m_gemm_chunks(s);
  if (!s.strict) return whole(whole(chunks, SmallMGemmPlan::kStageChunks), plan.blocks);
  int64_t stages = 0;  // of the first CTA, which has as many as any
  const int group = SmallMGemmPlan::group_of(plan.columns);
  for (int part = 0; part < plan.parts(); part += group) {
    stages += whole(chunks - part, SmallMGemmPlan::kParts) * group / SmallMGemmPlan::kStageChunks;
  }
  return stages;
}

// Clusters that are resident at once with one CTA per SM. The sizes of GPCs leave some SMs out of clusters of four:
// cudaOccupancyMaxActiveClusters says 30 for an H200's 132 SMs.
constexpr int64_t clusters_at_once(int num_sms, int blocks) {
  return std::max<int64_t>(blocks > 2 ? num_sms * 10 / (11 * blocks) : num_sms / blocks, 1);
}

// Returns the cheapest plan with clusters of `blocks` CTAs among the tile widths that `allowed` accepts; the widest of
// equals. columns is 0 if there is none.
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
                           SmallMGemmPlan::kStageChunks;  // each CTA needs one or more
    if (blocks > stages || blocks > num_sms) continue;
    next.clusters = small_m_gemm_clusters(small_m_gemm_tiles(s, next), clusters_at_once(num_sms, blocks));
    const int64_t cost = small_m_gemm_rounds(s, next) * next.cost();
    if (stages_with_room(next) < kFewestStages || !allowed(next) || (least > 0 && cost > least)) continue;
    least = cost, best = next;
  }
  return best;
}

// Single CTAs if they keep four fifths of the SMs busy, or seven tenths with swap-AB. Otherwise clusters of four if all
// of them run at once: they leave some SMs to the next kernel, which begins there. Otherwise clusters of two.
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
  // No more stages than are used: beside those of small weights the next kernel's CTAs find room.
  plan.stages =
      static_cast<int>(std::min(stages_with_room(plan), stages_of_tile(s, plan) * small_m_gemm_rounds(s, plan)));
  return plan;
}

// Returns the plan; box_rows is 0 if another kernel should run.
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
