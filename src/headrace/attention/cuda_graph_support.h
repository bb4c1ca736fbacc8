// Interface of backends that support CUDA graph capture and replay.
#pragma once
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/core/dtype.h"

namespace headrace {

struct RadixAttentionConfig;

// AttentionBackend::cuda_graph_support() is null for backends without graphs. Addresses that a graph reads stay fixed
// from init_cuda_graph_state() on. The methods have pymllm's names but take a ForwardBatch: pymllm's arguments,
// page-table rows and lengths, lack the write slots and the device addresses.
class CudaGraphSupport {
 public:
  virtual ~CudaGraphSupport() = default;

  // KV length of padding requests in decode batches: 1, since length 0 would divide by zero.
  static constexpr int32_t kSeqLenFill = 1;
  virtual int32_t get_cuda_graph_seq_len_fill_value() const { return kSeqLenFill; }
  // Called once, before the first capture; no capture has more requests or tokens, padding included. A backend
  // allocates here what its captures share beyond the batches' DeviceBatch.
  virtual void init_cuda_graph_state(int32_t max_bs, int32_t max_num_tokens) = 0;
  // Binds the plan of `batch` to the fixed buffers of the capture for `bucket` requests. Error kInvalidArgument for a
  // batch larger than announced.
  virtual void init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch, int32_t bucket) = 0;
  // Refreshes those buffers; requests past the batch are padding with kDoNotStore and kNoState.
  virtual void init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch, int32_t bucket) = 0;
  // Returns, ascending, the KV lengths below those of `batch` for which a graph of its own is worth capturing, because
  // `layer`, with activations of `dtype`, would run another kernel.
  virtual std::vector<int32_t> kv_len_buckets(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                              DType dtype) const = 0;
};

}  // namespace headrace
