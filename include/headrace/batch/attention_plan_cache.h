// Attention plan cache: plans that kernels make once per batch and reuse in every layer.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace {

// Memory on a batch's device for kernels' plans, such as the work tiles of attention. The first layer that needs a plan
// makes it; it holds until the batch changes, and the next batch's plans reuse the memory. The memory has a fixed size.
// Not thread-safe.
class AttentionPlanCache {
 public:
  // The key of a plan: everything it depends on besides the batch, such as heads, window and the kernel's tiles. Unused
  // entries are 0.
  using Key = std::array<int32_t, 12>;
  enum class State : uint8_t { kNew, kMade };  // kNew: the caller must write the plan
  struct Place {
    void* memory = nullptr;
    State state = State::kNew;
  };
  // Bytes for all plans of a batch, and the maximum for one plan.
  static constexpr int64_t kBytes = int64_t{16} << 20, kMostBytes = kBytes / 4;

  // Error kOutOfMemory.
  explicit AttentionPlanCache(DeviceRuntime& runtime, int64_t bytes = kBytes) : memory_(DType::kU8, {bytes}, runtime) {}

  // Returns the plan of `key`, at least `bytes` bytes. A captured graph makes its own plans, so it finds them at the
  // same addresses on replay. `memory` is null if there is no room: the caller then plans for itself.
  Place find(const Key& key, int64_t bytes);
  // Drops every plan: the batch has changed.
  void forget() { plans_.clear(); }

 private:
  struct Plan {
    Key key;
    int64_t begin, bytes;
  };

  Tensor memory_;
  std::vector<Plan> plans_;  // plans of the batch, contiguous in memory_
};

}  // namespace headrace
