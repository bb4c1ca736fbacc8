// How a chain of products of few rows uses shared memory. Pure: shapes in, sizes out.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

// One step of a chain: products of one input, or of its norm.
struct GemmSequenceStep {
  int64_t in = 0;
  bool normed = false;
};

struct GemmSequencePlan {
  static constexpr int kMostRows = 8;  // of x
  // Above them small_m_gemm.cuh is faster in fast mode, where it takes a product; not in strict mode, measured.
  static constexpr int kMostFastRows = 4;
  static constexpr int kChunkLen = 64, kSliceChunks = 8, kSliceLen = kSliceChunks * kChunkLen;
  // Neighbouring rows of a weight that come in one box; a slot of the ring has room for two boxes of a slice.
  static constexpr int kUnitRows = 4, kBoxBytes = kUnitRows * kSliceLen * 2, kSlotBytes = 2 * kBoxBytes;
  static constexpr int kTeams = 2;       // warpgroups that multiply, every other slice each, with a ring each
  static constexpr int kGroupTiles = 3;  // slots of weights whose sums a warpgroup keeps at once
  // Leaves room on the multiprocessor for the small kernels between two chains, so that a chain starts beside them.
  static constexpr int kSharedBytes = 220 << 10;
  static constexpr int kMostSlots = 14, kFewestSlots = 2;
  static constexpr int kEarlySlots = 2;  // of a step that has not begun, asked of memory at a time

  int slices = 1;       // of x that each team has room for
  int norm_slices = 0;  // of norm weights
  int slots = 0;        // of each team's ring; 0: the chain cannot be run

  static constexpr int slices_of(int64_t in) { return static_cast<int>((in + kSliceLen - 1) / kSliceLen); }
  // Every kTeams-th slice from `first` on.
  static constexpr int team_slices(int slices, int first) { return (slices - first + kTeams - 1) / kTeams; }
  constexpr bool holds(int in_slices) const { return team_slices(in_slices, 0) <= slices; }
  // Of the product that multiplies a chunk: rows of x, and zeros.
  static constexpr int columns(int rows) { return rows <= 4 ? 4 : 8; }
  static constexpr int x_slice_bytes(int rows) { return kSliceLen * 2 * columns(rows); }
  constexpr int x_bytes(int rows) const { return kTeams * slices * x_slice_bytes(rows); }
  constexpr int ring_bytes() const { return kTeams * slots * kSlotBytes; }
  constexpr int norm_bytes() const { return norm_slices * kSliceLen * 2; }
  // Parts of the sums of a group, [kGroupRows] for each row of x, so far apart that lanes which write at once meet in
  // no bank: sixteen, eight chunks of the slices of each team.
  static constexpr int kGroupRows = kGroupTiles * 2 * kUnitRows;
  static constexpr int row_at(int row) { return row * kGroupRows + row / 4 * 8; }
  // Four less, so that neighbouring parts lie in other banks; what it takes off is behind the last row.
  static constexpr int part_floats(int columns) { return row_at(columns) - 4; }
  static constexpr int part_bytes(int rows) { return kTeams * kSliceChunks * part_floats(columns(rows)) * 4; }
  static constexpr int kSquareBytes = kTeams * 4 * (kMostRows / 2) * 4, kBarrierBytes = kTeams * kMostSlots * 16,
                       kStepBytes = 16;  // and where the exchange has other values
  constexpr int shared_bytes(int rows) const {
    return x_bytes(rows) + ring_bytes() + norm_bytes() + part_bytes(rows) + kSquareBytes + kBarrierBytes + kStepBytes;
  }
};

// Whether a chain is faster than a kernel for each product. Steps of a chain cost more between them, 2 to 4 us, but
// read large weights at 4.5 TB/s with any number of rows; measured: docs/performance/chains.md. Results of another type
// than x end a chain, as nothing that follows can read them: it pays for weights that are large alone, as a head's.
constexpr bool gemm_sequence_pays(int64_t weight_bytes, bool results_are_as_x) {
  constexpr int64_t kLeast = int64_t{20} << 20, kLeastAlone = int64_t{256} << 20;
  return weight_bytes >= (results_are_as_x ? kLeast : kLeastAlone);
}

// Rows of x that are normed lie whole in shared memory. Others as well while they are small; what does not fit comes
// slice by slice, two ahead or more.
constexpr GemmSequencePlan plan_gemm_sequence(int rows, const GemmSequenceStep* steps, int num_steps) {
  constexpr int kSmallX = 32 << 10, kFewestOfMany = 3;
  if (rows < 1 || rows > GemmSequencePlan::kMostRows) return {};
  const auto of_team = [](int64_t in) { return GemmSequencePlan::team_slices(GemmSequencePlan::slices_of(in), 0); };
  GemmSequencePlan plan;
  int most = 1, normed = 1;
  for (int i = 0; i < num_steps; ++i) {
    most = std::max(most, of_team(steps[i].in));
    if (!steps[i].normed) continue;
    normed = std::max(normed, of_team(steps[i].in));
    plan.norm_slices = std::max(plan.norm_slices, GemmSequencePlan::slices_of(steps[i].in));
  }
  const int small =
      std::max(kFewestOfMany, kSmallX / (GemmSequencePlan::kTeams * GemmSequencePlan::x_slice_bytes(rows)));
  plan.slices = std::max(normed, std::min(most, small));
  const int left = GemmSequencePlan::kSharedBytes - plan.shared_bytes(rows);
  const int slots =
      std::min(left / (GemmSequencePlan::kTeams * GemmSequencePlan::kSlotBytes), GemmSequencePlan::kMostSlots);
  plan.slots = slots >= GemmSequencePlan::kFewestSlots ? slots : 0;
  return plan;
}

}  // namespace headrace::cuda
