// Epilogue of the mma.sync attention kernel: writes final rows, or the partial states of KV splits.
#pragma once
#include "headrace/ops/cuda/attention/sm80/fmha_kv_splits.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_tile.cuh"

namespace headrace::cuda {

// Destination of a row: the final result, or the result of one KV split.
struct RowResult {
  const AttentionParams& p;
  const SplitPlan& plan;
  int part;

  __device__ void state(int token, int head, float largest, float sum) const {
    if (plan.values != nullptr) {
      plan.states[(int64_t{token} * p.heads + head) * plan.parts + part] = make_float2(largest, sum);
    } else if (p.lse != nullptr) {
      p.lse[token * p.lse_stride + head] = log_sum(largest, sum);
    }
  }
  // Writes two adjacent values; final ones are divided by the sum. Returns true if one is NaN.
  template <class T>
  __device__ bool values(int token, int head, int d, float x, float y, float sum) const {
    if (d >= p.v_head_dim) return false;
    if (plan.values != nullptr) {
      float* to = plan.values + ((int64_t{token} * p.heads + head) * plan.parts + part) * p.v_head_dim + d;
      to[0] = x;
      if (d + 1 < p.v_head_dim) to[1] = y;
      return false;
    }
    const float scale = sum == 0 ? 0.0f : p.v_scale / sum;
    T* to = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride + d;
    *reinterpret_cast<uint32_t*>(to) = pack2<T>(x * scale, y * scale);
    return isnan(x * scale) || isnan(y * scale);
  }
};

// Merges the states of the warps that split the keys, through shared memory, and writes the rows. Returns true if a
// value is NaN.
template <class S>
__device__ inline bool write_merged(const MmaBlock<S>& b, MmaState<S>& state, const RowResult& result) {
  float* values = reinterpret_cast<float*>(b.shared);
  float* states = values + S::kWarpsN * S::kRows * S::kDim;
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = b.my_row(0, half), at = b.warp_n * S::kRows + row;
    const float sum = quad_sum(state.sum[0][half]);
    if (b.lane % 4 == 0) states[at * 2] = state.largest[0][half], states[at * 2 + 1] = sum;
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
      float* to = values + at * S::kDim + d * 8 + b.lane % 4 * 2;
      to[0] = state.value[0][d][half * 2], to[1] = state.value[0][d][half * 2 + 1];
    }
  }
  __syncthreads();
  bool nan = false;
  for (int i = threadIdx.x; i < S::kRows * S::kDim / 2; i += S::kThreads) {
    const int row = i / (S::kDim / 2), d = i % (S::kDim / 2) * 2;
    if (b.row0 + row >= b.rows) break;
    float largest = -INFINITY, sum = 0, x = 0, y = 0;
#pragma unroll
    for (int w = 0; w < S::kWarpsN; ++w) largest = fmaxf(largest, states[(w * S::kRows + row) * 2]);
    const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
    for (int w = 0; w < S::kWarpsN; ++w) {
      const int at = w * S::kRows + row;
      const float factor = exp2f(states[at * 2] - base);
      sum = fmaf(factor, states[at * 2 + 1], sum);
      x = fmaf(factor, values[at * S::kDim + d], x);
      y = fmaf(factor, values[at * S::kDim + d + 1], y);
    }
    const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
    if (d == 0) result.state(token, head, largest, sum);
    nan |= result.values<typename S::T>(token, head, d, x, y, sum);
  }
  return nan;
}

template <class S>
__device__ inline bool write_own(const MmaBlock<S>& b, MmaState<S>& state, const RowResult& result) {
  bool nan = false;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(state.sum[m][half]);
      const int row = b.my_row(m, half);
      if (b.row0 + row >= b.rows) continue;
      const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
      if (b.lane % 4 == 0) result.state(token, head, state.largest[m][half], sum);
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        nan |= result.values<typename S::T>(token, head, d * 8 + b.lane % 4 * 2, state.value[m][d][half * 2],
                                            state.value[m][d][half * 2 + 1], sum);
      }
    }
  }
  return nan;
}

// Recomputes rows with NaN, one by one. An infinite or NaN value corrupts rows that do not see it, since 0 times it is
// NaN. Real models have no such values.
template <class S>
__device__ inline void redo_rows(const MmaBlock<S>& b, int request) {
#pragma unroll 1
  for (int row = 0; row < S::kRows && b.row0 + row < b.rows; ++row) {
    attend_row(b.p, request, b.axis.span.q_off + b.token_of(row), b.head_of(row),
               *reinterpret_cast<RowScratch*>(b.shared), RowWrite::kWhereNaN, {1, static_cast<int>(threadIdx.x)});
  }
}

}  // namespace headrace::cuda
