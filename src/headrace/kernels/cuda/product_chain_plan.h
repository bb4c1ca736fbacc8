// How a chain of products of few rows uses shared memory. Pure: shapes in, sizes out.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

// One step of a chain: products of one input, or of its norm.
struct ChainStep {
  int64_t in = 0;
  bool normed = false;
};

struct ChainPlan {
  static constexpr int kMostRows = 8;     // of x: the columns of one tensor-core product
  static constexpr int kSliceLen = 1024;  // elements of `in` in one slot of the ring
  static constexpr int kSlotRows = 8;     // rows of a weight in one
  // 64 bytes behind each row: 16-byte reads of two rows then meet in no bank.
  static constexpr int kSlotPitch = kSliceLen * 2 + 64, kSlotBytes = kSlotRows * kSlotPitch;
  static constexpr int kWarps = 8, kGroupTiles = 4, kTileRows = 16;
  // Leaves room on the multiprocessor for the small kernels between two chains, so that a chain starts beside them.
  static constexpr int kSharedBytes = 220 << 10;
  static constexpr int kMostSlots = 16, kFewestSlots = 4;

  int slices = 1;       // of x that lie in shared memory at once
  int norm_slices = 0;  // of norm weights
  int slots = 0;        // of the ring of weights; 0: the chain cannot be run

  static constexpr int slices_of(int64_t in) { return static_cast<int>((in + kSliceLen - 1) / kSliceLen); }
  constexpr int norm_bytes() const { return norm_slices * kSliceLen * 2; }
  constexpr int x_bytes(int rows) const { return slices * kSliceLen * 2 * rows; }
  static constexpr int kPartBytes = kGroupTiles * kWarps * 32 * 16;             // four sums of each lane
  static constexpr int kSmallBytes = kMostSlots * 16 + kWarps * kMostRows * 4;  // barriers, and sums of squares
  constexpr int bytes_before_ring(int rows) const {
    return (kSmallBytes + norm_bytes() + x_bytes(rows) + kPartBytes + 127) / 128 * 128;
  }
  constexpr int shared_bytes(int rows) const { return bytes_before_ring(rows) + slots * kSlotBytes; }
};

// Whether a chain is faster than a kernel for each product. Steps of a chain cost more between them, some 4 us, but
// read large weights at 3.8 TB/s with any number of rows; measured: docs/performance.md. Results of another type than x
// end a chain, as nothing that follows can read them: it pays for weights that are large alone, as a head's.
constexpr bool chain_pays(int64_t weight_bytes, bool results_are_as_x) {
  constexpr int64_t kLeast = int64_t{20} << 20, kLeastAlone = int64_t{256} << 20;
  return weight_bytes >= (results_are_as_x ? kLeast : kLeastAlone);
}

// Rows of x that are normed lie whole in shared memory. Others as well while they are small; what does not fit comes
// slice by slice, two or three ahead.
constexpr ChainPlan plan_chain(int rows, const ChainStep* steps, int num_steps) {
  constexpr int kSmallX = 48 << 10;
  ChainPlan plan;
  int most = 1;
  for (int i = 0; i < num_steps; ++i) {
    const int slices = ChainPlan::slices_of(steps[i].in);
    most = std::max(most, slices);
    if (steps[i].normed) plan.norm_slices = std::max(plan.norm_slices, slices);
  }
  const int small = std::max(2, kSmallX / (ChainPlan::kSliceLen * 2 * std::max(rows, 1)));
  plan.slices = std::max({plan.norm_slices, std::min(most, small)});
  const int left = ChainPlan::kSharedBytes - plan.bytes_before_ring(rows);
  const int slots = std::min(left / ChainPlan::kSlotBytes, ChainPlan::kMostSlots);
  plan.slots = rows >= 1 && rows <= ChainPlan::kMostRows && slots >= ChainPlan::kFewestSlots ? slots : 0;
  return plan;
}

}  // namespace headrace::cuda
