// Attention of any shape: a block for each row and query head, float32 throughout. A key's warp is its position modulo
// the number of warps, so a row's bits depend on its own keys alone.
#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/paged_attention.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kMaxDim = 512, kPerLane = kMaxDim / 32;

struct Row {
  int request, token, head, kv_head;
  KeySpan span;
};

// Request whose rows hold `token`. Called by whole warps.
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

__device__ int64_t pool_offset(const AttentionParams& p, const PagedSide& side, int page_row, int kv_head,
                               int position) {
  const int64_t page = p.page_table[page_row * p.table_stride + position / p.page_size];
  return page * side.page_stride + kv_head * side.head_stride + position % p.page_size * side.slot_stride;
}

// Softmax state of one warp: values spread over its lanes.
struct Partial {
  float largest = -INFINITY, sum = 0, value[kPerLane] = {};
};

struct Worker {
  const AttentionParams& p;
  const Row& row;
  const float* q;  // shared, scaled
  Partial state;
  int lane;

  __device__ void key(const PagedSide& k, int64_t k_at, const PagedSide& v, int64_t v_at, bool fresh) {
    float score = 0;
    for (int d = lane; d < p.head_dim; d += 32) {
      const float x = load(k.data, k.type, k_at + d);
      score = fmaf(q[d], fresh ? rounded(p.key_type, x) : x, score);
    }
    score = warp_sum(score);
    if (p.cap > 0) score = p.cap * tanhf(score / p.cap);
    const float largest = fmaxf(state.largest, score);
    const float keep = expf(state.largest - largest), weight = expf(score - largest);
    state.largest = largest;
    state.sum = fmaf(state.sum, keep, weight);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int d = i * 32 + lane;
      if (d >= p.v_head_dim) break;
      const float x = load(v.data, v.type, v_at + d);
      state.value[i] = fmaf(weight, fresh ? rounded(p.key_type, x) : x, state.value[i] * keep);
    }
  }

  __device__ void pool_key(int page_row, int position) {
    key(p.k, pool_offset(p, p.k, page_row, row.kv_head, position), p.v,
        pool_offset(p, p.v, page_row, row.kv_head, position), false);
  }

  __device__ void run(int warp) {
    const KeySpan& s = row.span;
    if (p.encoder) {
      for (int j = warp; j < s.encoder_len; j += kWarps) pool_key(s.encoder_page_row, j);
      return;
    }
    const int i = row.token - s.q_off;
    const auto first = [warp](int from) { return from + ((warp - from) % kWarps + kWarps) % kWarps; };
    for (int j = first(s.first_cached(i, p.window)); j < s.ctx_len; j += kWarps) {
      if (s.sees_cached(j)) pool_key(s.page_row, j);
    }
    const int end = s.new_keys(i);
    for (int at = first(s.phys0 + s.first_new(i, p.window)); at < s.phys0 + end; at += kWarps) {
      if (p.k_new.data == nullptr) {
        pool_key(s.page_row, at);
      } else {
        const int64_t token = s.q_off + at - s.phys0;
        key(p.k_new, token * p.k_new.page_stride + row.kv_head * p.k_new.head_stride, p.v_new,
            token * p.v_new.page_stride + row.kv_head * p.v_new.head_stride, true);
      }
    }
  }
};

__global__ void __launch_bounds__(kWarps * 32) attend(AttentionParams p) {
  __shared__ float q[kMaxDim], largest[kWarps], sum[kWarps], value[kWarps][kMaxDim];
  Row row;
  row.token = blockIdx.x, row.head = blockIdx.y, row.kv_head = row.head / (p.heads / p.kv_heads);
  row.request = request_of(p, row.token);
  const int64_t out_at = row.token * p.out_token_stride + row.head * p.out_head_stride;
  if (row.request < 0) {  // padding of a graph: a row of no request
    for (int d = threadIdx.x; d < p.v_head_dim; d += kWarps * 32) store(p.out, p.q_type, out_at + d, 0);
    return;
  }
  row.span = folded(p.spans[row.request], p.type);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int d = threadIdx.x; d < p.head_dim; d += kWarps * 32) {
    q[d] = load(p.q, p.q_type, row.token * p.q_token_stride + row.head * p.q_head_stride + d) * p.scale;
  }
  __syncthreads();
  Worker worker{p, row, q, {}, lane};
  worker.run(warp);
  if (lane == 0) largest[warp] = worker.state.largest, sum[warp] = worker.state.sum;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) value[warp][i * 32 + lane] = worker.state.value[i];
  __syncthreads();
  float all = -INFINITY, total = 0, factor[kWarps];
  for (int w = 0; w < kWarps; ++w) all = fmaxf(all, largest[w]);
  for (int w = 0; w < kWarps; ++w) {
    factor[w] = largest[w] == -INFINITY ? 0.0f : expf(largest[w] - all);
    total += factor[w] * sum[w];
  }
  for (int d = threadIdx.x; d < p.v_head_dim; d += kWarps * 32) {
    float y = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (factor[w] != 0) y = fmaf(factor[w], value[w][d], y);
    }
    store(p.out, p.q_type, out_at + d, total > 0 ? y / total : 0.0f);
  }
  if (p.lse != nullptr && threadIdx.x == 0) {
    p.lse[row.token * p.lse_stride + row.head] = total > 0 ? all + logf(total) : -INFINITY;
  }
}

}  // namespace

void paged_attention_simple(const AttentionParams& p, const Stream& stream) {
  HR_REQUIRE(p.head_dim <= kMaxDim && p.v_head_dim <= kMaxDim, ErrorCode::kUnsupported,
             "cuda paged_attention: heads of ", p.head_dim, " and ", p.v_head_dim, ", expected at most ", kMaxDim);
  attend<<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(p.heads)), kWarps * 32, 0, stream.handle>>>(p);
  check_launch("paged_attention");
}

}  // namespace headrace::cuda
