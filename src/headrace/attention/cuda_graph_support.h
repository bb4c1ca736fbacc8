// What a backend needs to be captured in a CUDA graph and replayed with other lengths.
#pragma once
#include "headrace/batch/forward_batch.h"

namespace headrace {

// Implemented by backends for which graphs mean something; AttentionBackend::cuda_graph_support() is null for the
// others. Addresses that a graph reads stay fixed from init_cuda_graph_state() on. The methods have pymllm's names
// and take a ForwardBatch: pymllm's arguments, rows of the page table and lengths, say neither where tokens are
// stored nor at which addresses a device finds all this.
class CudaGraphSupport {
 public:
  virtual ~CudaGraphSupport() = default;

  // Length of padded decode rows: 1, since a length of 0 would divide by zero.
  static constexpr int32_t kSeqLenFill = 1;
  virtual int32_t get_cuda_graph_seq_len_fill_value() const { return kSeqLenFill; }
  // Once, before the first capture: none will have more requests or tokens, padding included. A backend allocates here
  // what its captures share, if that is not all in the batches' DeviceBatch.
  virtual void init_cuda_graph_state(int32_t max_bs, int32_t max_num_tokens) = 0;
  // Binds the plan of `batch` to the fixed buffers of the capture for `bucket` requests. Error kInvalidArgument for a
  // batch that is larger than was said.
  virtual void init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch, int32_t bucket) = 0;
  // Refreshes those buffers; rows past the batch are padded with kDoNotStore and kNoState.
  virtual void init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch, int32_t bucket) = 0;
};

}  // namespace headrace
