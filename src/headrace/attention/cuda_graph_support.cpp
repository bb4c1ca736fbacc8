#include "headrace/attention/cuda_graph_support.h"

#include "headrace/attention/decode_batch.h"

namespace headrace {
namespace {

void check_decode(int32_t bs, ForwardMode mode) {
  HR_REQUIRE(is_decode_or_idle(mode), ErrorCode::kInvalidArgument, "cuda graph: forward mode ", name_of(mode),
             ", expected decode or idle");
  HR_REQUIRE(bs >= 1, ErrorCode::kInvalidArgument, "cuda graph: bs is ", bs, ", expected 1 or more");
}

}  // namespace

CudaGraphSupport::CudaGraphSupport() = default;
CudaGraphSupport::~CudaGraphSupport() = default;

std::vector<int32_t> CudaGraphSupport::kv_len_buckets(const ForwardBatch&, const RadixAttentionConfig&, DType) const {
  return {};
}

void CudaGraphSupport::set_decode_pools(const DecodeBatchPools& pools) {
  pools_ = std::make_unique<DecodeBatchPools>(pools);
}

void CudaGraphSupport::init_cuda_graph_state(int32_t max_bs, int32_t max_num_tokens) {
  max_bs_ = max_bs, max_num_tokens_ = max_num_tokens;
  captured_.clear();
  if (pools_) decode_batch_ = std::make_unique<DecodeBatch>(*pools_, max_bs);
  init_graph_state(max_bs, max_num_tokens);
}

// Kernels read lengths, slots and pages from the batch's DeviceMetadata, at fixed addresses of its DeviceBatch.
CudaGraphSupport::Addresses CudaGraphSupport::addresses_of(const ForwardBatch& batch) {
  const DeviceMetadata* on_device = batch.attn.on_device;
  if (on_device == nullptr) return {};
  return {.spans = on_device->spans, .state_slots = on_device->state_slots};
}

void CudaGraphSupport::init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch, int32_t bucket) {
  HR_REQUIRE(batch.batch_size() == bucket, ErrorCode::kInvalidArgument, "cuda graph: the batch has ",
             batch.batch_size(), " requests, expected ", bucket, ", padding included");
  HR_REQUIRE(bucket <= max_bs_ && batch.num_tokens() <= max_num_tokens_, ErrorCode::kInvalidArgument,
             "cuda graph: a batch of ", bucket, " requests and ", batch.num_tokens(), " tokens, expected up to ",
             max_bs_, " and ", max_num_tokens_, ", as init_cuda_graph_state was told");
  plan_capture(batch, bucket);
  captured_[bucket] = addresses_of(batch);
}

void CudaGraphSupport::init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch, int32_t bucket) {
  const auto captured = captured_.find(bucket);
  const Addresses found = addresses_of(batch);
  HR_REQUIRE(captured != captured_.end() && found.spans != nullptr && found == captured->second,
             ErrorCode::kInvalidArgument, "cuda graph: a batch of ", bucket,
             " requests is not in the memory that its graph was captured with");
  plan_replay(batch, bucket);
}

DecodeBatch& CudaGraphSupport::decode_batch() {
  HR_REQUIRE(pools_ != nullptr, ErrorCode::kUnsupported,
             "cuda graph: request rows and lengths need a request table; expected BackendConfig::req_to_token_pool");
  HR_REQUIRE(decode_batch_ != nullptr, ErrorCode::kInvalidArgument,
             "cuda graph: call init_cuda_graph_state before the first capture");
  return *decode_batch_;
}

const ForwardBatch& CudaGraphSupport::init_forward_metadata_capture_cuda_graph(int32_t bs, int32_t num_tokens,
                                                                               const TensorView& req_pool_indices,
                                                                               const TensorView& seq_lens,
                                                                               ForwardMode forward_mode) {
  check_decode(bs, forward_mode);
  HR_REQUIRE(num_tokens == bs, ErrorCode::kInvalidArgument, "cuda graph: ", num_tokens, " tokens of ", bs,
             " requests, expected one of each");
  HR_REQUIRE(bs <= max_bs_, ErrorCode::kInvalidArgument, "cuda graph: bs is ", bs, ", expected up to ", max_bs_,
             ", as init_cuda_graph_state was told");
  const ForwardBatch& batch = decode_batch().build_longest(
      {.bs = bs, .req_pool_indices = req_pool_indices, .seq_lens = seq_lens, .mode = forward_mode});
  init_forward_metadata_capture_cuda_graph(batch, bs);
  return batch;
}

const ForwardBatch& CudaGraphSupport::init_forward_metadata_replay_cuda_graph(
    int32_t bs, const TensorView& req_pool_indices, const TensorView& seq_lens, int64_t seq_lens_sum,
    ForwardMode forward_mode, const TensorView& seq_lens_cpu) {
  check_decode(bs, forward_mode);
  HR_REQUIRE(captured_.contains(bs), ErrorCode::kInvalidArgument, "cuda graph: no graph of ", bs,
             " requests was captured");
  const ForwardBatch& batch = decode_batch().build({.bs = bs,
                                                    .req_pool_indices = req_pool_indices,
                                                    .seq_lens = seq_lens_cpu ? seq_lens_cpu : seq_lens,
                                                    .seq_lens_sum = seq_lens_sum,
                                                    .mode = forward_mode});
  init_forward_metadata_replay_cuda_graph(batch, bs);
  return batch;
}

}  // namespace headrace
