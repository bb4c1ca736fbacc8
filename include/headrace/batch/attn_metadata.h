// Metadata of a batch for attention, besides q, k and v. Kernels depend on this alone, never on a strategy.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/batch/key_span.h"
#include "headrace/core/tensor.h"

namespace headrace {

inline constexpr int64_t kDoNotStore = -1;  // write slot of a token whose K and V are not stored
inline constexpr int32_t kNoState = -1;     // read: start from zeros; write: keep nothing

// State slots of a request's recurrent state. Both may be the same slot.
struct StateSlots {
  int32_t read = kNoState, write = kNoState;
};

// A snapshot: the request's state after its first `num_tokens` new tokens is copied to `slot`.
struct StateSnapshot {
  int32_t request = 0;     // index into AttnMetadata::spans
  int32_t num_tokens = 0;  // 1 .. q_len
  int32_t slot = 0;
};

class AttentionPlanCache;

// The arrays of an AttnMetadata in device memory: addresses into memory of a DeviceBatch. Kernels read lengths, slots
// and kinds only from here, so a captured graph stays valid when their contents change; the host's arrays size the
// launch.
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

// One value per batch; owned by ForwardBatch. Views refer to memory of the engine (or of a test) that outlives the
// forward pass.
struct AttnMetadata {
  std::vector<KeySpan> spans = {};  // one per request; rows are packed in this order without gaps
  TensorView page_table = {};       // int32 [rows, pages]: physical page of each logical page
  // Promises of the page table's writer (ReqToTokenPool), which spare a step the reading of its rows. Without them rows
  // may hold anything and change at any time.
  TensorView row_versions = {};         // int64 [rows], on the host: another number after every change of a row
  int64_t pages_below = INT64_MAX;      // all entries are 0 or more, and below this
  TensorView write_slots = {};          // int64 [num_tokens]: pool slot (page * page_size + offset) or kDoNotStore
  int64_t padding_rows = 0;             // padding tokens at the end, to fill a captured graph; their results are unused
  TensorView encoder_write_slots = {};  // int64 [encoder tokens]: where cross-attention stores encoder K and V
  std::vector<StateSlots> state_slots = {};   // one per request; empty when the model has no GDN layers
  std::vector<StateSnapshot> snapshots = {};  // sorted by request, then num_tokens
  const DeviceMetadata* on_device = nullptr;  // not owned: the same arrays on the device; null on a CPU

  int64_t num_requests() const { return static_cast<int64_t>(spans.size()); }
  int64_t num_tokens() const { return spans.empty() ? 0 : spans.back().q_off + spans.back().q_len; }

  // Returns true if the batch writes to no pool: all slots are kDoNotStore, all states kNoState, no snapshots. For a
  // batch on a device, the upload computes it.
  bool keeps_nothing() const;
  // Checks that rows are packed, spans obey their kinds, tables are large enough and, if the page table is on the host,
  // that pages of cached tokens are pages of the pool; pages_below may show that without a look at them. Error
  // kInvalidArgument names the request. `page_size` is the pool's; 0 skips the page-table checks. `pool_pages` includes
  // the reserved page.
  void validate(int32_t page_size, int64_t pool_pages = INT64_MAX) const;
};

}  // namespace headrace
