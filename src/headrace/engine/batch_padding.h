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
  // `seq_len_fill`: length of a padded decode row, CudaGraphSupport::get_cuda_graph_seq_len_fill_value().
  BatchPadding(States states, int32_t seq_len_fill) : states_(states), seq_len_fill_(seq_len_fill) {}

  // `batch` with padding up to `size` requests of one token each. A padded one has the length of the fill, is neither
  // stored nor kept (kDoNotStore, kNoState) and has logits that nobody reads. The result refers to memory of `batch`
  // and of this object and is valid until the next call. Error kInvalidArgument for a batch that is larger, or whose
  // requests have more than one token.
  const ForwardBatch& fill(const ForwardBatch& batch, int32_t size);

  // `batch` with padding up to sizes.rows rows, sizes.spans requests and sizes.logits_rows rows of logits. The padded
  // rows belong to the last request, see no key and are neither stored nor kept; the other padded requests have no
  // rows; padded logits are those of row 0. Valid as above. Error kInvalidArgument for a batch that leaves no request
  // for the padding, or has more rows.
  struct Sizes {
    int32_t spans = 0, rows = 0, logits_rows = 0;
  };
  const ForwardBatch& fill(const ForwardBatch& batch, const Sizes& sizes);

 private:
  States states_;
  int32_t seq_len_fill_;
  std::vector<int32_t> ids_, positions_;  // behind filled_
  std::vector<int64_t> write_slots_;
  ForwardBatch filled_;
};

}  // namespace headrace
