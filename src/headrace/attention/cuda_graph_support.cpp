#include "headrace/attention/cuda_graph_support.h"

namespace headrace {
namespace {

ForwardBatch decode_batch(int32_t bs, const TensorView& rows, const TensorView& seq_lens, ForwardMode mode) {
  HR_REQUIRE(is_decode_or_idle(mode), ErrorCode::kInvalidArgument, "cuda graph: mode is ", name_of(mode),
             ", expected decode or idle");
  const auto row = rows.as<const int32_t, 1>("req_pool_indices");
  const auto len = seq_lens.as<const int32_t, 1>("seq_lens");
  HR_REQUIRE(row.dim(0) >= bs && len.dim(0) >= bs, ErrorCode::kInvalidArgument, "cuda graph: ", row.dim(0),
             " rows and ", len.dim(0), " lengths, expected ", bs);
  ForwardBatch batch;
  batch.mode = mode;
  for (int32_t i = 0; i < bs; ++i) {
    HR_REQUIRE(len(i) >= 1, ErrorCode::kInvalidArgument, "cuda graph: request ", i, " has length ", len(i),
               ", expected 1 or more");
    batch.attn.spans.push_back(
        {.q_off = i, .q_len = 1, .ctx_len = len(i) - 1, .phys0 = len(i) - 1, .page_row = row(i)});
  }
  return batch;
}

}  // namespace

void CudaGraphSupport::init_forward_metadata_capture_cuda_graph(int32_t bs, int32_t num_tokens,
                                                                const TensorView& req_pool_indices,
                                                                const TensorView& seq_lens, ForwardMode mode) {
  HR_REQUIRE(num_tokens == bs, ErrorCode::kInvalidArgument, "cuda graph: ", num_tokens, " tokens, expected ", bs,
             " (one for each request)");
  init_forward_metadata_capture_cuda_graph(decode_batch(bs, req_pool_indices, seq_lens, mode), bs);
}

void CudaGraphSupport::init_forward_metadata_replay_cuda_graph(int32_t bs, const TensorView& req_pool_indices,
                                                               const TensorView& seq_lens, int64_t seq_lens_sum,
                                                               ForwardMode mode) {
  const ForwardBatch batch = decode_batch(bs, req_pool_indices, seq_lens, mode);
  int64_t sum = 0;
  for (const KeySpan& span : batch.attn.spans) sum += span.seq_len();
  HR_REQUIRE(sum == seq_lens_sum, ErrorCode::kInvalidArgument, "cuda graph: seq_lens_sum is ", seq_lens_sum,
             ", the lengths sum to ", sum);
  init_forward_metadata_replay_cuda_graph(batch, bs);
}

}  // namespace headrace
