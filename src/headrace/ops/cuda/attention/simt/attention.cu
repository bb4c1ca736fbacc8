// Attention of any shape: one CTA per row and query head.
#include "headrace/core/error.h"
#include "headrace/ops/cuda/attention/paged_attention.h"
#include "headrace/ops/cuda/attention/simt/attention_row.cuh"
#include "headrace/ops/cuda/limits.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
namespace {

static_assert(kMaxHeadDim == kMostHeadDim);

// Returns the request whose rows include `token`, or -1. Whole warps call it.
__device__ int request_of(const AttentionParams& p, int token) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < p.requests; base += 32) {
    const int r = base + lane;
    const bool mine = r < p.requests && token >= p.spans[r].q_off && token < p.spans[r].q_off + p.spans[r].q_len;
    const unsigned found = __ballot_sync(0xffffffffu, mine);
    if (found != 0) return base + __ffs(static_cast<int>(found)) - 1;
  }
  return -1;
}

__global__ void __launch_bounds__(kRowWarps * 32) attend(const __grid_constant__ AttentionParams p) {
  __shared__ RowScratch scratch;
  const int token = blockIdx.x, head = blockIdx.y, request = request_of(p, token);
  if (request >= 0) {
    attend_row<4>(p, request, token, head, scratch, RowWrite::kAll, {0, static_cast<int>(threadIdx.x)});
    return;
  }
  // token of no request: a graph's padding
  const int64_t out_at = token * p.out_token_stride + head * p.out_head_stride;
  for (int d = threadIdx.x; d < p.v_head_dim; d += kRowWarps * 32) store(p.out, p.q_type, out_at + d, 0);
}

}  // namespace

void simt_attention(const AttentionParams& p, const Stream& stream) {
  HR_REQUIRE(p.head_dim <= kMaxHeadDim && p.v_head_dim <= kMaxHeadDim, ErrorCode::kUnsupported,
             "cuda paged_attention: heads of ", p.head_dim, " and ", p.v_head_dim, ", expected at most ", kMaxHeadDim);
  attend<<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(p.heads)), kRowWarps * 32, 0, stream.handle>>>(
      p);
  check_launch("paged_attention");
}

}  // namespace headrace::cuda
