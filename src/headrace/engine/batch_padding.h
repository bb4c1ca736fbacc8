// Decode batches filled up to the sizes that graphs are recorded for. Host work alone.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/batch/forward_batch.h"

namespace headrace {

// Batch sizes that graphs are recorded for, ascending: 1, 2, 4, 8, 12, 16, then multiples of 8, and `max` itself. None
// for max below 1.
std::vector<int32_t> capture_sizes(int32_t max);

// Copies of decode batches with idle requests behind their own. Not thread-safe.
class BatchPadding {
 public:
  enum class States : uint8_t { kNone, kRecurrent };  // of the model
  explicit BatchPadding(States states) : states_(states) {}

  // `batch` with padding up to `size` requests of one token each. A padded one has length 1, sees itself, is neither
  // stored nor kept (kDoNotStore, kNoState) and has logits that nobody reads. The result refers to memory of `batch`
  // and of this object and is valid until the next call. Error kInvalidArgument for a batch that is larger, or whose
  // requests have more than one token.
  const ForwardBatch& fill(const ForwardBatch& batch, int32_t size);

 private:
  States states_;
  std::vector<int32_t> ids_, positions_;  // behind filled_
  std::vector<int64_t> write_slots_;
  ForwardBatch filled_;
};

}  // namespace headrace
