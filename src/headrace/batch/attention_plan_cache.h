// What kernels worked out about a batch for one layer and can use again for the others.
#pragma once
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace {

// Memory on a batch's device for plans that its kernels make: how attention is cut into pieces, for instance. A plan is
// made by the first layer that asks for it and holds until the batch changes; the next batch's plans take its place.
// The memory has one size, whatever batches come. Not thread-safe.
class AttentionPlanCache {
 public:
  // What a plan depends on besides the batch: heads, window, the kernel's tiles and so on. Unused numbers are 0.
  using Key = std::array<int32_t, 12>;
  enum class State : uint8_t { kNew, kMade };  // kNew: the caller is to write the plan
  struct Place {
    void* memory = nullptr;
    State state = State::kNew;
  };
  // Enough for all plans of a batch, and what one of them has at most.
  static constexpr int64_t kBytes = int64_t{16} << 20, kMostBytes = kBytes / 4;

  // Error kOutOfMemory.
  explicit AttentionPlanCache(DeviceRuntime& runtime, int64_t bytes = kBytes) : memory_(DType::kU8, {bytes}, runtime) {}

  // The plan named `key`, of at least `bytes` bytes. A recorded graph makes the plans that it uses, so it finds them
  // where they lay when it was recorded. No memory where there is no room for it: the caller plans for itself alone.
  Place find(const Key& key, int64_t bytes);
  // Said by a kernel of the batch: if no row saw more than `keys` keys, another one would be chosen for it. 0: none.
  void note_shorter(int32_t keys) {
    if (keys > 0) shorter_keys_.insert(keys);
  }
  // Of what keys this was said since the batch changed.
  const std::set<int32_t>& shorter_keys() const { return shorter_keys_; }
  // The batch has changed: every plan is to be made again.
  void forget();

 private:
  struct Plan {
    Key key;
    int64_t begin, bytes;
  };

  Tensor memory_;
  std::vector<Plan> plans_;  // of the batch, one behind the other
  std::set<int32_t> shorter_keys_;
};

}  // namespace headrace
