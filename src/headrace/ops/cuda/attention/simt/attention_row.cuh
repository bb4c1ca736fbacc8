// Attention of one query row by 128 threads of a CTA: float32 throughout, any dtype and mask. A key's warp is its index
// on the key axis modulo the number of warps, so a row's bits depend only on its own keys.
#pragma once
#include "headrace/ops/cuda/arch/element.cuh"
#include "headrace/ops/cuda/attention/common/fp8.cuh"
#include "headrace/ops/cuda/attention/common/mask.cuh"

namespace headrace::cuda {

inline constexpr int kRowWarps = 4, kMaxHeadDim = 512;

template <int kMostDim>
struct RowScratchOf {  // shared memory, for heads of up to kMostDim
  float q[kMostDim], largest[kRowWarps], sum[kRowWarps], value[kRowWarps][kMostDim];
};
using RowScratch = RowScratchOf<kMaxHeadDim>;

// Returns element `i` of a key or value in the pool's units. A new one is rounded as if it had been stored.
__device__ inline float key_element(const AttentionParams& p, const PagedSide& side, bool fresh, float scale,
                                    int64_t i) {
  if (!fresh && side.type == DType::kE4M3) return e4m3_to_float(static_cast<const uint8_t*>(side.data)[i]);
  const float x = load(side.data, side.type, i);
  if (!fresh) return x;
  return p.key_type == DType::kE4M3 ? e4m3_to_float(float_to_e4m3(x, scale)) : rounded(p.key_type, x);
}

// Online-softmax state of one warp. The values lie in shared memory, and each lane accesses only its own. kTogether
// unrolls the loops over elements. Kernels that only recompute NaN rows use 1, since unrolling would be most of their
// code.
template <int kTogether>
struct RowPartial {
  float* value;
  float largest = -INFINITY, sum = 0;

  __device__ void add(const AttentionParams& p, const float* q, const KeyAxis::Place& at, int lane) {
    const PagedSide &k = at.fresh ? p.k_new : p.k, &v = at.fresh ? p.v_new : p.v;
    float score = 0;
#pragma unroll kTogether
    for (int d = lane; d < p.head_dim; d += 32) {
      score = fmaf(q[d], key_element(p, k, at.fresh, p.k_scale, at.k + d), score);
    }
    score = warp_sum(score);
    if (p.cap > 0) score = p.cap * tanhf(score / p.cap);
    const float largest_now = fmaxf(largest, score);
    const float keep = expf(largest - largest_now), weight = expf(score - largest_now);
    largest = largest_now;
    sum = fmaf(sum, keep, weight);
#pragma unroll kTogether
    for (int d = lane; d < p.v_head_dim; d += 32) {
      value[d] = fmaf(weight, key_element(p, v, at.fresh, p.v_scale, at.v + d), value[d] * keep);
    }
  }
};

// The 128 threads that share a row, their named barrier, and the columns that they write.
struct RowThreads {
  int barrier, thread;
  int first_column = 0, columns = kMaxHeadDim;
  __device__ void sync() const { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }
};

enum class RowWrite : uint8_t { kAll, kWhereNaN };  // outputs that attend_row() overwrites

// Writes the row's output and log-sum-exp. All 128 threads of `threads` call it.
template <int kTogether = 1, int kMostDim = kMaxHeadDim>
__device__ __noinline__ void attend_row(const AttentionParams& p, int request, int token, int head,
                                        RowScratchOf<kMostDim>& shared, RowWrite write, RowThreads threads) {
  const KeyAxis axis(p, request);
  const int warp = threads.thread / 32, lane = threads.thread % 32, kv_head = head / (p.heads / p.kv_heads);
#pragma unroll 1
  for (int d = threads.thread; d < p.head_dim; d += kRowWarps * 32) {
    shared.q[d] = load(p.q, p.q_type, token * p.q_token_stride + head * p.q_head_stride + d) * p.scale;
  }
  threads.sync();
  RowPartial<kTogether> state{shared.value[warp]};
#pragma unroll 1
  for (int d = lane; d < p.v_head_dim; d += 32) state.value[d] = 0;
  const KeyAxis::Row row = axis.row(p, token - axis.span.q_off);
#pragma unroll 1
  for (int of_batch = 0; of_batch < 2; ++of_batch) {
    const int from = of_batch ? max(row.first_new, axis.ctx) : row.first,
              to = of_batch ? row.end : min(axis.ctx, row.end);
#pragma unroll 1
    for (int key = from + ((warp - from) % kRowWarps + kRowWarps) % kRowWarps; key < to; key += kRowWarps) {
      if (axis.sees(p, row, key)) state.add(p, shared.q, axis.place(p, kv_head, key), lane);
    }
  }
  if (lane == 0) shared.largest[warp] = state.largest, shared.sum[warp] = state.sum;
  threads.sync();
  float all = -INFINITY, total = 0, factor[kRowWarps];
  for (int w = 0; w < kRowWarps; ++w) all = fmaxf(all, shared.largest[w]);
  for (int w = 0; w < kRowWarps; ++w) {
    factor[w] = shared.sum[w] == 0 ? 0.0f : expf(shared.largest[w] - all);
    total += factor[w] * shared.sum[w];
  }
  const bool any = row.end > 0 && total != 0;
  const int64_t out_at = token * p.out_token_stride + head * p.out_head_stride;
  const int end_column = min(p.v_head_dim, threads.first_column + threads.columns);
#pragma unroll 1
  for (int d = threads.first_column + threads.thread; d < end_column; d += kRowWarps * 32) {
    float y = 0;
    for (int w = 0; w < kRowWarps; ++w) {
      if (factor[w] != 0) y = fmaf(factor[w], shared.value[w][d], y);
    }
    if (write == RowWrite::kWhereNaN && !isnan(load(p.out, p.q_type, out_at + d))) continue;
    store(p.out, p.q_type, out_at + d, any ? y * p.v_scale / total : 0.0f);
  }
  float* const lse = p.lse == nullptr ? nullptr : p.lse + token * p.lse_stride + head;
  if (lse != nullptr && threads.thread == 0 && (write == RowWrite::kAll || isnan(*lse))) {
    *lse = any ? all + logf(total) : -INFINITY;
  }
  threads.sync();
}

}  // namespace headrace::cuda
