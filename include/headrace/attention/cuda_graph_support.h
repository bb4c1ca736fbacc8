// Interface of backends that support CUDA graph capture and replay.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/core/dtype.h"

namespace headrace {

class DecodeBatch;
struct DecodeBatchPools;
struct RadixAttentionConfig;

// AttentionBackend::cuda_graph_support() is null for backends without graphs. The methods have pymllm's names. Those
// that take a ForwardBatch are for callers with a DeviceBatch of their own; those with pymllm's arguments build the
// decode batch of a request table's rows. Addresses that a graph reads stay fixed from init_cuda_graph_state() on. Not
// thread-safe.
class CudaGraphSupport {
 public:
  CudaGraphSupport();
  CudaGraphSupport(const CudaGraphSupport&) = delete;
  CudaGraphSupport& operator=(const CudaGraphSupport&) = delete;
  virtual ~CudaGraphSupport();

  // KV length of padding requests in decode batches: 1, since length 0 would divide by zero.
  static constexpr int32_t kSeqLenFill = 1;
  virtual int32_t get_cuda_graph_seq_len_fill_value() const { return kSeqLenFill; }

  // Sets what the calls with pymllm's arguments build batches of. Call before init_cuda_graph_state(); make_backend
  // does if BackendConfig has a request table.
  void set_decode_pools(const DecodeBatchPools& pools);
  // Called once, before the first capture; no capture has more requests or tokens, padding included. Allocates what
  // captures share. Error kOutOfMemory.
  void init_cuda_graph_state(int32_t max_bs, int32_t max_num_tokens);
  // Plans `batch`, which lies in the memory that the capture for `bucket` requests will read. Call before the capture
  // begins. Error kInvalidArgument for a batch larger than announced, and as AttentionBackend::init_forward_metadata.
  void init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch, int32_t bucket);
  // Plans `batch` for a replay. Requests past the real ones are padding with kDoNotStore and kNoState. Error
  // kInvalidArgument if it lies in other memory than the captured batch.
  void init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch, int32_t bucket);

  // Returns, ascending, the KV lengths below those of `batch` for which a graph of its own is worth capturing, because
  // `layer`, with activations of `dtype`, would run another kernel. None by default.
  virtual std::vector<int32_t> kv_len_buckets(const ForwardBatch& batch, const RadixAttentionConfig& layer,
                                              DType dtype) const;

  // These two take pymllm's arguments. Each returns the batch to give to layers, at an address that stays, valid until
  // the next of these calls; its tensors have bs rows. A capture's batch stores nothing and has the table's longest
  // context, so its launches suit every replay, whatever the lengths are.
  //   req_pool_indices  int32 or int64, at least bs: rows of the ReqToTokenPool; row 0 is padding: it stores nothing
  //   seq_lens          int32 or int64, at least bs: keys of each request, the new token's included; 1 or more. On a
  //                     replay the table has their pages and, in a hybrid, state slots
  //   forward_mode      kDecode or kIdle;   num_tokens: equals bs
  //   seq_lens_sum      the sum of the bs lengths
  //   seq_lens_cpu      seq_lens on the host. Null: copied from the device, which waits for it
  // Tensors lie on the host or on the backend's device. Error kInvalidArgument for other values; kUnsupported without a
  // request table.
  const ForwardBatch& init_forward_metadata_capture_cuda_graph(int32_t bs, int32_t num_tokens,
                                                               const TensorView& req_pool_indices,
                                                               const TensorView& seq_lens, ForwardMode forward_mode);
  const ForwardBatch& init_forward_metadata_replay_cuda_graph(int32_t bs, const TensorView& req_pool_indices,
                                                              const TensorView& seq_lens, int64_t seq_lens_sum,
                                                              ForwardMode forward_mode,
                                                              const TensorView& seq_lens_cpu = {});

 private:
  // A backend's part of the three calls, after their checks.
  virtual void init_graph_state(int32_t max_bs, int32_t max_num_tokens) = 0;
  virtual void plan_capture(const ForwardBatch& batch, int32_t bucket) = 0;
  virtual void plan_replay(const ForwardBatch& batch, int32_t bucket) = 0;

  struct Addresses {
    const KeySpan* spans = nullptr;
    const StateSlots* state_slots = nullptr;
    bool operator==(const Addresses&) const = default;
  };
  static Addresses addresses_of(const ForwardBatch& batch);
  DecodeBatch& decode_batch();

  int32_t max_bs_ = 0, max_num_tokens_ = 0;
  std::map<int32_t, Addresses> captured_;  // by bucket
  std::unique_ptr<DecodeBatchPools> pools_;
  std::unique_ptr<DecodeBatch> decode_batch_;
};

}  // namespace headrace
