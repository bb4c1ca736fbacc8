// Metadata of a batch for attention, besides q, k and v. Kernels depend on this alone, never on a strategy.
#pragma once
#include <vector>

#include "headrace/batch/device_metadata.h"
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

// One value per batch; owned by ForwardBatch. Views refer to memory of the engine (or of a test) that outlives the
// forward pass.
struct AttnMetadata {
  std::vector<KeySpan> spans = {};      // one per request; rows are packed in this order without gaps
  TensorView page_table = {};           // int32 [rows, pages]: physical page of each logical page
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
  // that pages of cached tokens are pages of the pool. Error kInvalidArgument names the request.
  // `page_size` is the pool's; 0 skips the page-table checks. `pool_pages` includes the reserved page.
  void validate(int32_t page_size, int64_t pool_pages = INT64_MAX) const;
};

}  // namespace headrace
