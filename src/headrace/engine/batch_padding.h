// Pads batches to the sizes that CUDA graphs are captured for. Host code only.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/batch/forward_batch.h"

namespace headrace {

// Returns the batch sizes to capture, ascending: 1, 2, 4, 8, 12, 16, then multiples of 8, and `max` itself. Empty if
// max is below 1.
std::vector<int32_t> capture_sizes(int32_t max);

// Makes padded copies of batches. Not thread-safe.
class BatchPadding {
 public:
  enum class States : uint8_t { kNone, kRecurrent };  // recurrent states of the model
  // `seq_len_fill`: KV length of a padding request, CudaGraphSupport::get_cuda_graph_seq_len_fill_value().
  BatchPadding(States states, int32_t seq_len_fill) : states_(states), seq_len_fill_(seq_len_fill) {}

  // Pads a decode batch to `size` requests of one token each.
  // A padding request has length seq_len_fill, stores no K and V (kDoNotStore), keeps no state (kNoState), and its
  // logits are unused.
  // The result refers to memory of `batch` and of this object and is valid until the next call.
  // Error kInvalidArgument if the batch is larger, or if a request has more than one token.
  const ForwardBatch& fill(const ForwardBatch& batch, int32_t size);

  // Pads a batch to sizes.rows tokens, sizes.spans requests and sizes.logits_rows rows of logits.
  // All padding tokens belong to the last request: they attend to no key, store no K and V and keep no state. The other
  // padding requests have no tokens. Padding entries of logits_rows are token 0. Validity of the result as above.
  // Error kInvalidArgument if the batch has more tokens or logits rows, or fills all of sizes.spans (one is left for
  // padding).
  struct Sizes {
    int32_t spans = 0, rows = 0, logits_rows = 0;
  };
  const ForwardBatch& fill(const ForwardBatch& batch, const Sizes& sizes);

 private:
  States states_;
  int32_t seq_len_fill_;
  std::vector<int32_t> ids_, positions_;  // memory of filled_
  std::vector<int64_t> write_slots_;
  ForwardBatch filled_;
};

}  // namespace headrace
