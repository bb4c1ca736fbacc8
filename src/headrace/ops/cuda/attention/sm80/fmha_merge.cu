// Merges the KV splits of rows. Source: Dao et al. 2023, Flash-Decoding.
#include "headrace/ops/cuda/attention/sm80/fmha.h"
#include "headrace/ops/cuda/attention/sm80/fmha_kv_splits.cuh"

namespace headrace::cuda {

namespace {

// Merges one column of a row's splits in order and returns it. `all` becomes the merged state.
__device__ float merged_column(const SplitPlan& plan, const float2* states, const float* column, int stride,
                               PartialState& all) {
  constexpr int kAhead = 8;  // splits loaded before the first is used
  float x = 0;
  for (int base = 0; base < plan.parts; base += kAhead) {
    float value[kAhead];
    PartialState part[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int s = base + j;
      if (s >= plan.parts) continue;
      const float2 state = states[s];
      part[j] = {state.x, state.y};
      value[j] = state.y == 0 ? 0.0f : column[int64_t{s} * stride];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (base + j >= plan.parts || part[j].sum == 0) continue;
      const PartialState next = all.merged_with(part[j]);
      x = all.sum == 0 ? value[j] : PartialState::merged_value(x, all.factor(next), value[j], part[j].factor(next));
      all = next;
    }
  }
  return x;
}

// One CTA per token and query head.
__global__ void __launch_bounds__(128)
    merge_splits(const __grid_constant__ AttentionParams p, const __grid_constant__ SplitPlan plan) {
  __shared__ RowScratch scratch;
  const int token = blockIdx.x, head = blockIdx.y;
  const int64_t row = int64_t{token} * p.heads + head;
  const float2* states = plan.states + row * plan.parts;
  const float* values = plan.values + row * plan.parts * p.v_head_dim;
  bool nan = false;
  for (int d = threadIdx.x; d < p.v_head_dim; d += 128) {
    PartialState all;
    const float x = merged_column(plan, states, values + d, p.v_head_dim, all);
    const float y = x * (all.sum == 0 ? 0.0f : p.v_scale / all.sum);
    nan |= isnan(y);
    store(p.out, p.q_type, token * p.out_token_stride + head * p.out_head_stride + d, y);
    if (p.lse != nullptr && d == 0) p.lse[token * p.lse_stride + head] = log_sum(all.largest, all.sum);
  }
  if (!__syncthreads_or(nan)) return;
  for (int r = 0; r < p.requests; ++r) {
    const KeySpan& span = p.spans[r];
    if (token >= span.q_off && token < span.q_off + span.q_len)
      attend_row(p, r, token, head, scratch, RowWrite::kWhereNaN, {1, static_cast<int>(threadIdx.x)});
  }
}

}  // namespace

void merge_splits_sm80(const AttentionParams& p, const SplitPlan& plan, const Stream& stream) {
  merge_splits<<<dim3(static_cast<unsigned>(p.tokens), static_cast<unsigned>(p.heads)), 128, 0, stream.handle>>>(p,
                                                                                                                 plan);
}

}  // namespace headrace::cuda
