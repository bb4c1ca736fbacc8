// What a backend needs to be captured in a CUDA graph and replayed with other lengths.
#pragma once
#include "headrace/batch/forward_batch.h"

namespace headrace {

// Implemented by backends for which graphs mean something; AttentionBackend::cuda_graph_support() is null for the
// others. Addresses that a graph reads stay fixed from init_cuda_graph_state() on.
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

  // The origin's argument lists, for decode batches: each becomes a ForwardBatch of causal one-token spans and
  // calls the form above. req_pool_indices and seq_lens are int32 [bs] on the host.
  void init_forward_metadata_capture_cuda_graph(int32_t bs, int32_t num_tokens, const TensorView& req_pool_indices,
                                                const TensorView& seq_lens, ForwardMode mode);
  void init_forward_metadata_replay_cuda_graph(int32_t bs, const TensorView& req_pool_indices,
                                               const TensorView& seq_lens, int64_t seq_lens_sum, ForwardMode mode);
};

}  // namespace headrace
