// The arrays of an AttnMetadata in device memory.
#pragma once
#include <cstdint>

#include "headrace/batch/key_span.h"

namespace headrace {

class AttentionPlanCache;
struct StateSlots;
struct StateSnapshot;

// Device addresses into memory of a DeviceBatch. Kernels read lengths, slots and kinds only from here, so a captured
// graph stays valid when their contents change; the host's arrays size the launch.
// Contract: these arrays, the page table, the tokens' positions and write slots, and all K and V that spans call cached
// are written before the batch's first kernel is queued, by an upload or by kernels that it waits for. Attention may
// read them while the kernel before it still runs.
struct DeviceMetadata {
  const KeySpan* spans = nullptr;
  const StateSlots* state_slots = nullptr;
  const StateSnapshot* snapshots = nullptr;
  // kAllStored: every token before the padding has a write slot. Once stored, new keys can then be read from the pool
  // like all others.
  enum class NewKeys : uint8_t { kSomeNotStored, kAllStored };
  NewKeys new_keys = NewKeys::kSomeNotStored;
  enum class Keeps : uint8_t { kNothing, kSomething } keeps = Keeps::kSomething;  // AttnMetadata::keeps_nothing
  AttentionPlanCache* plans = nullptr;  // of the batch; null: kernels reuse no plans between layers
  // For graphs whose replays distribute tokens over requests in other ways than the host's spans: the maximal tokens of
  // a request, for which launches are sized. 0: the host's spans are exact.
  int32_t most_rows = 0;
  // For such graphs: the longest KV length of most replays. Kernels are chosen for it and handle longer contexts, too.
  // 0: any length that the page table allows.
  int32_t most_keys = 0;
};

}  // namespace headrace
