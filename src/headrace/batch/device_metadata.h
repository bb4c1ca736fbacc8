// The arrays of an AttnMetadata where a device's kernels can read them.
#pragma once
#include <cstdint>
#include <optional>

#include "headrace/batch/key_span.h"
#include "headrace/batch/self_conditioning.h"
#include "headrace/batch/token_merge.h"

namespace headrace {

class AttentionPlanCache;
struct StateSlots;
struct StateSnapshot;

// Device addresses; refers to memory of the DeviceBatch that made it. Kernels read lengths, slots and kinds from here
// alone, so a captured graph stays valid when their contents change; the host's arrays size the launch.
// Who fills it promises that these arrays, the page table, tokens' positions and write slots, and the keys and values
// that the spans call cached were written before the first kernel of the batch was queued, by an upload, or by kernels
// that it waits for: attention may read them while a kernel ahead of it still runs.
struct DeviceMetadata {
  const KeySpan* spans = nullptr;
  const StateSlots* state_slots = nullptr;
  const StateSnapshot* snapshots = nullptr;
  // Whether every row that counts has a write slot: once stored, new keys can be read from the pool like all others.
  enum class NewKeys : uint8_t { kSomeNotStored, kAllStored };
  NewKeys new_keys = NewKeys::kSomeNotStored;
  enum class Keeps : uint8_t { kNothing, kSomething } keeps = Keeps::kSomething;  // AttnMetadata::keeps_nothing
  AttentionPlanCache* plans = nullptr;  // of the batch; null: kernels keep nothing from one layer to the next
  // Their views on the device; AttnMetadata keeps the host's.
  std::optional<TokenMerge> token_merge = {};
  std::optional<SelfConditioning> self_conditioning = {};
  // Rows of a request at most, in a graph whose replays share out their rows among its requests in other ways than the
  // host's spans: launches are sized for the worst of them. 0: the host's spans stay true.
  int32_t most_rows = 0;
  // In such a graph: keys that a row of most replays sees at most. Kernels are chosen by it, and serve longer contexts
  // as well. 0: any that the page table allows.
  int32_t most_keys = 0;
};

}  // namespace headrace
