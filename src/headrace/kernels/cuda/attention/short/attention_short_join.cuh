// The end of warps that share a request's keys: their sums become one.
#pragma once
#include "headrace/kernels/cuda/attention/short/attention_short_rows.cuh"

namespace headrace::cuda {

// Where a warp lays down its sums, in its own shared memory, which keys have left.
template <class S, int kTiles>
struct ShortParts {
  static constexpr int kRows = 16 * kTiles, kStride = S::kDim + 8;  // floats of a row: neighbours begin in other banks
  static constexpr int kJoinedAt = kRows * 8, kValuesAt = 2 * kRows * 8;
  static_assert(kValuesAt + kRows * kStride * 4 <= S::kWarpBytes && kValuesAt % 16 == 0);
  char* block;

  __device__ float2& state(int warp, int row) const { return *reinterpret_cast<float2*>(of(warp) + row * 8); }
  // Of all warps.
  __device__ float2& joined(int row) const { return *reinterpret_cast<float2*>(block + kJoinedAt + row * 8); }
  __device__ float* values(int warp, int row, int d) const {
    return reinterpret_cast<float*>(of(warp) + kValuesAt) + row * kStride + d;
  }

 private:
  __device__ char* of(int warp) const { return block + warp * S::kWarpBytes; }
};

// Writes the rows, added up in the order of the warps. Called by the whole block, whose shared memory is `block`'s.
// Returns whether a value is NaN.
template <class S, int kTiles>
__device__ inline bool write_joined_rows(const AttentionParams& p, const ShortPlace& rows, char* block,
                                         const ShortSums<S, kTiles>& from) {
  const ShortParts<S, kTiles> parts{block};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto row_of = [lane](int m, int half) { return m * 16 + half * 8 + lane / 4; };
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    if (lane % 4 == 0) parts.state(warp, row_of(i / 2, i % 2)) = {from.largest[i / 2][i % 2], from.sum[i / 2][i % 2]};
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTiles * 2; ++i) {
    const int m = i / 2, half = i % 2, row = row_of(m, half);
    PartSum all;
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float2 part = parts.state(w, row);
      all = all.joined({part.x, part.y});
    }
    const float factor = PartSum{from.largest[m][half], from.sum[m][half]}.factor(all);
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
      *reinterpret_cast<float2*>(parts.values(warp, row, d * 8 + lane % 4 * 2)) = {
          from.value[m][d][half * 2] * factor, from.value[m][d][half * 2 + 1] * factor};
    }
    if (warp == 0 && lane % 4 == 0) parts.joined(row) = {all.largest, all.sum};
  }
  __syncthreads();
  bool nan = false;
  for (int i = threadIdx.x; i < rows.rows * S::kDim / 4; i += S::kThreads) {
    const int row = i / (S::kDim / 4), d = i % (S::kDim / 4) * 4;
    const float2 state = parts.joined(row);
    const float by = state.y == 0 ? 0.0f : p.v_scale / state.y;
    float4 sum{};
#pragma unroll
    for (int w = 0; w < S::kWarps; ++w) {
      const float4 x = *reinterpret_cast<const float4*>(parts.values(w, row, d));
      sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    sum = {sum.x * by, sum.y * by, sum.z * by, sum.w * by};
    nan |= isnan(sum.x) || isnan(sum.y) || isnan(sum.z) || isnan(sum.w);
    *reinterpret_cast<uint2*>(static_cast<typename S::T*>(p.out) + rows.out_at(p, row) + d) = {
        pack2<typename S::T>(sum.x, sum.y), pack2<typename S::T>(sum.z, sum.w)};
    if (p.lse != nullptr && d == 0)
      p.lse[(rows.q_off + rows.token_of(row)) * p.lse_stride + rows.head_of(row)] = PartSum{state.x, state.y}.log_sum();
  }
  __syncthreads();  // keys of the next rows may come where these were
  return nan;
}

}  // namespace headrace::cuda
