// Shared-memory plan of a GEMM sequence. Pure: shapes in, sizes out.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

inline constexpr size_t kMostSequenceSteps = 4;  // calls, each with up to four weights: a decoder layer has four

// One step of a sequence: GEMMs of one x, or of its norm. `in` is K.
struct GemmSequenceStep {
  int64_t in = 0;
  bool normed = false;
};

struct GemmSequencePlan {
  static constexpr int kMostRows = 4;  // largest M; above it small_m_gemm.cuh is as fast
  static constexpr int kChunkLen = 64, kSliceChunks = 8, kSliceLen = kSliceChunks * kChunkLen;
  // Neighbouring rows of a weight in one TMA box. A pipeline slot has room for two boxes of a slice.
  static constexpr int kUnitRows = 4, kBoxBytes = kUnitRows * kSliceLen * 2, kSlotBytes = 2 * kBoxBytes;
  static constexpr int kTeams = 2;       // consumer warpgroups, every other slice each, with a pipeline each
  static constexpr int kGroupTiles = 3;  // slots of weights whose sums a warpgroup accumulates at once
  // Leaves room on the SM for the small kernels between two sequences, so that a sequence starts beside them.
  static constexpr int kSharedBytes = 220 << 10;
  static constexpr int kMostSlots = 14, kFewestSlots = 2;
  static constexpr int kEarlySlots = 2;  // slots of a step that has not begun, loaded at a time

  int slices = 1;       // slices of x in shared memory, per warpgroup
  int norm_slices = 0;  // slices of norm weights in shared memory
  int slots = 0;        // pipeline slots per warpgroup; 0: the sequence cannot run

  static constexpr int slices_of(int64_t in) { return static_cast<int>((in + kSliceLen - 1) / kSliceLen); }
  // Returns how many of slices `first`, `first` + kTeams, ... there are.
  static constexpr int team_slices(int slices, int first) { return (slices - first + kTeams - 1) / kTeams; }
  // Returns true if x of so many slices fits in shared memory as a whole.
  constexpr bool holds(int in_slices) const { return team_slices(in_slices, 0) <= slices; }
  static constexpr int kXSliceBytes = kSliceLen * 2 * kMostRows;  // rows of x are padded with zeros to kMostRows
  constexpr int x_bytes() const { return kTeams * slices * kXSliceBytes; }
  constexpr int ring_bytes() const { return kTeams * slots * kSlotBytes; }
  constexpr int norm_bytes() const { return norm_slices * kSliceLen * 2; }
  // A split's sums of a group: [kGroupRows] for each row of x, padded so that lanes that write at once have no bank
  // conflicts. There are sixteen splits: eight chunks of the slices of each warpgroup.
  static constexpr int kGroupRows = kGroupTiles * 2 * kUnitRows;
  static constexpr int row_at(int row) { return row * kGroupRows; }
  // Floats of a split: four more, so that neighbouring splits lie in other banks.
  static constexpr int kPartFloats = kMostRows * kGroupRows + 4;
  static constexpr int kPartBytes = kTeams * kSliceChunks * kPartFloats * 4;
  static constexpr int kSquareBytes = kTeams * 4 * (kMostRows / 2) * 4, kBarrierBytes = kTeams * kMostSlots * 16,
                       kStepBytes = 16;  // the current step, and the address of the other generation
  constexpr int shared_bytes() const {
    return x_bytes() + ring_bytes() + norm_bytes() + kPartBytes + kSquareBytes + kBarrierBytes + kStepBytes;
  }
};

// Heuristic: returns true if a sequence beats one kernel per GEMM. A sequence costs more between steps, 2 to 4 us, but
// reads large weights at 4.5 TB/s for any M; measured: docs/design/gemm.md. Results of another dtype than x end
// a sequence, because no GEMM after it can read them. Then only a weight that is large by itself pays, such as an LM
// head.
constexpr bool gemm_sequence_pays(int64_t weight_bytes, bool results_are_as_x) {
  constexpr int64_t kLeast = int64_t{20} << 20, kLeastAlone = int64_t{256} << 20;
  return weight_bytes >= (results_are_as_x ? kLeast : kLeastAlone);
}

// Chooses the sizes. x of a normed step lies whole in shared memory, other x too while it is small. What does not fit
// is streamed slice by slice, two or more ahead. `slots` is 0 if M or the sizes are not supported.
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
  constexpr int small = std::max(kFewestOfMany, kSmallX / (GemmSequencePlan::kTeams * GemmSequencePlan::kXSliceBytes));
  plan.slices = std::max(normed, std::min(most, small));
  const int left = GemmSequencePlan::kSharedBytes - plan.shared_bytes();
  const int slots =
      std::min(left / (GemmSequencePlan::kTeams * GemmSequencePlan::kSlotBytes), GemmSequencePlan::kMostSlots);
  plan.slots = slots >= GemmSequencePlan::kFewestSlots ? slots : 0;
  return plan;
}

}  // namespace headrace::cuda
