// One KV tile of the mma.sync attention kernel: scores, weights, values, and the softmax state that rows carry from
// tile to tile. Source: Dao 2023, FlashAttention-2.
#pragma once
#include "headrace/ops/cuda/attention/common/kv_tiles.cuh"
#include "headrace/ops/cuda/attention/common/soft_cap.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_block.cuh"

namespace headrace::cuda {

// Returns the sum over the four lanes that share a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class S>
struct MmaState {
  float value[S::kRowTiles][S::kDim / 8][4];
  float largest[S::kRowTiles][2], sum[S::kRowTiles][2];
  KeyAxis::Row row[S::kRowTiles][2];
};

// Initialises the state of rows that have seen no key. `last` is the CTA's last row.
template <class S>
__device__ inline void begin_rows(const MmaBlock<S>& b, int last, MmaState<S>& state) {
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.largest[m][half] = -INFINITY, state.sum[m][half] = 0;
      const int row = min(b.my_row(m, half), last);
      state.row[m][half] = b.axis.row(b.p, b.token_of(row));
    }
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
      state.value[m][d][0] = state.value[m][d][1] = state.value[m][d][2] = state.value[m][d][3] = 0;
    }
  }
}

template <class S>
__device__ inline void scores_of(const MmaBlock<S>& b, int stage, float (&s)[S::kRowTiles][S::kWarpKeys / 8][4]) {
  const uint32_t q_at = shared_address(b.shared), k_at = shared_address(b.k_tile(stage));
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < S::kWarpKeys / 8; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
  }
#pragma unroll
  for (int d = 0; d < S::kDim / 16; ++d) {
    uint32_t q[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      const int r = (b.warp_m * S::kRowTiles + m) * 16 + b.lane % 16;
      load_tiles(q[m], q_at + swizzled<S::kChunks>(r, d * 2 + b.lane / 16));
    }
#pragma unroll
    for (int n = 0; n < S::kWarpKeys / 16; ++n) {
      uint32_t k[4];
      const int r = b.warp_n * S::kWarpKeys + n * 16 + (b.lane & 7) + (b.lane >> 4) * 8;
      load_tiles(k, k_at + swizzled<S::kChunks>(r, d * 2 + (b.lane >> 3 & 1)));
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        mma_m16n8k16<typename S::T>(s[m][2 * n], q[m], k[0], k[1]);
        mma_m16n8k16<typename S::T>(s[m][2 * n + 1], q[m], k[2], k[3]);
      }
    }
  }
}

// Turns scores into weights in place and rescales the state to the new largest scores.
template <class S>
__device__ inline void soften(const MmaBlock<S>& b, int tile, bool masked, MmaState<S>& state,
                              float (&s)[S::kRowTiles][S::kWarpKeys / 8][4]) {
  static_assert(S::kWarpKeys <= 128);
  const AttentionParams& p = b.p;
  const float to_log2 = p.scale * kLog2e;
  const SoftCap capped(p.scale, p.cap);
  const int first = tile * S::kKeys + b.warp_n * S::kWarpKeys + b.lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = state.largest[m][half];
      const uint32_t seen = masked ? seen_bits(p, b.axis, state.row[m][half], 0, first, true) : ~0u;
#pragma unroll
      for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s[m][n][half * 2 + j];
          x = p.cap > 0 ? kLog2e * capped(x) : x * to_log2;
          if ((seen >> (2 * n + j) & 1) == 0) x = -INFINITY;
          largest = fmaxf(largest, x);
        }
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float base = largest == -INFINITY ? 0.0f : largest;
      const float keep = exp2f(state.largest[m][half] - base);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sum += s[m][n][half * 2 + j] = exp2f(s[m][n][half * 2 + j] - base);
      }
      state.largest[m][half] = largest;
      state.sum[m][half] = fmaf(state.sum[m][half], keep, sum);
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        state.value[m][d][half * 2] *= keep;
        state.value[m][d][half * 2 + 1] *= keep;
      }
    }
  }
}

template <class S>
__device__ inline void add_values(const MmaBlock<S>& b, int stage, const float (&s)[S::kRowTiles][S::kWarpKeys / 8][4],
                                  MmaState<S>& state) {
  using T = typename S::T;
  const uint32_t v_at = shared_address(b.v_tile(stage));
#pragma unroll
  for (int n = 0; n < S::kWarpKeys / 16; ++n) {
    uint32_t w[S::kRowTiles][4];
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
      w[m][0] = pack2<T>(s[m][2 * n][0], s[m][2 * n][1]);
      w[m][1] = pack2<T>(s[m][2 * n][2], s[m][2 * n][3]);
      w[m][2] = pack2<T>(s[m][2 * n + 1][0], s[m][2 * n + 1][1]);
      w[m][3] = pack2<T>(s[m][2 * n + 1][2], s[m][2 * n + 1][3]);
    }
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t v[4];
      const int r = b.warp_n * S::kWarpKeys + n * 16 + b.lane % 16;
      load_tiles_transposed(v, v_at + swizzled<S::kChunks>(r, d * 2 + b.lane / 16));
#pragma unroll
      for (int m = 0; m < S::kRowTiles; ++m) {
        mma_m16n8k16<T>(state.value[m][2 * d], w[m], v[0], v[1]);
        mma_m16n8k16<T>(state.value[m][2 * d + 1], w[m], v[2], v[3]);
      }
    }
  }
}

}  // namespace headrace::cuda
