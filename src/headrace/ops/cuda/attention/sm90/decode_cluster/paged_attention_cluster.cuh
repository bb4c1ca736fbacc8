// Attention of few rows over few keys, where a step waits for latency and not for bytes: the blocks of a cluster take
// tiles of one request's keys in turns, and join their sums through one another's shared memory. No plan, no second
// kernel, little code that has to come from memory. Source: Dao et al. 2023, Flash-Decoding.
#pragma once
#include "headrace/ops/cuda/arch/cluster.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/request_tiles.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_rows.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/paged_attention_cluster.h"

namespace headrace::cuda {

// Four warps of 16 keys each and all rows of the block; one tile of keys is in use, the next under way. (A third was no
// faster.)
template <class T, int kDim>
struct ClusterShape : MmaShape<T, PoolElements::kFloats, kDim, 1, kClusterKeys / 16, 1, kClusterKeys, 2> {
  using Base = MmaShape<T, PoolElements::kFloats, kDim, 1, kClusterKeys / 16, 1, kClusterKeys, 2>;
  static_assert(Base::kRows == kClusterRows);
  static constexpr int kStride = kDim + 8;  // floats of a row of sums: neighbouring rows begin in other banks
  static constexpr int kSumsBytes = Base::kRows * (kStride * 4 + 8);  // of a warp, or of the block
  static constexpr int kWarpsBytes = Base::kWarpsN * kSumsBytes;
  static constexpr int kJoinedAt = Base::kPipeBytes > kWarpsBytes ? Base::kPipeBytes : kWarpsBytes;
  static constexpr int kSharedBytes = kJoinedAt + kSumsBytes;
  static_assert(kJoinedAt >= int(sizeof(RowScratch)) && kSumsBytes % 16 == 0);
};

#if __CUDA_ARCH__ >= 900

// Two floats and four from an address in another block's shared memory.
__device__ inline float2 load_state(uint32_t address) {
  float2 x;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline float4 load_values(uint32_t address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// Sums of some of a block's keys: for each row the largest score, the sum of weights, and the weighted values.
template <class S>
struct RowSums {
  char* memory;

  __device__ float2* state(int row) const { return reinterpret_cast<float2*>(memory) + row; }
  __device__ float* values(int row, int d) const {
    return reinterpret_cast<float*>(memory + S::kRows * 8) + row * S::kStride + d;
  }
};

template <class S>
struct ClusterBlock : MmaBlock<S> {
  unsigned rank = 0, blocks = 1;  // of the cluster

  // The 16 keys of a tile that belong to this warp, so that no other has to be waited for.
  __device__ void load_own_keys(int tile, int stage) const {
    const int first = this->warp_n * S::kWarpKeys + this->lane / 4;
    KeyAxis::Place at[2];
    bool valid[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = tile * S::kKeys + first + 8 * j;
      valid[j] = this->readable(key);
      at[j] = valid[j] ? this->axis.place(this->p, this->kv_head, key) : KeyAxis::Place{0, 0, false};
    }
    const uint32_t k_to = shared_address(this->k_tile(stage)), v_to = shared_address(this->v_tile(stage));
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < S::kChunks / 4; ++i) {
        const int c = this->lane % 4 + 4 * i;
        const uint32_t to = swizzled<S::kChunks>(first + 8 * j, c);
        this->copy_chunk(k_to + to, v_to + to, at[j], c, valid[j]);
      }
    }
  }

  __device__ int valid_rows() const { return min(S::kRows, this->rows - this->row0); }
  __device__ RowSums<S> sums_of_warp(int warp) const { return {this->shared + warp * S::kSumsBytes}; }
  __device__ RowSums<S> joined_sums() const { return {this->shared + S::kJoinedAt}; }

  // Adds up the warps' sums, in order. Called by the whole block.
  __device__ void join_warps(MmaState<S>& state) const {
    const RowSums<S> mine = sums_of_warp(this->warp_n), to = joined_sums();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.sum[0][half] = quad_sum(state.sum[0][half]);
      if (this->lane % 4 == 0) *mine.state(this->my_row(0, half)) = {state.largest[0][half], state.sum[0][half]};
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = this->my_row(0, half);
      if (row >= valid_rows()) continue;
      PartialState all;
#pragma unroll
      for (int warp = 0; warp < S::kWarpsN; ++warp) {
        const float2 part = *sums_of_warp(warp).state(row);
        all = all.joined({part.x, part.y});
      }
      const float factor = PartialState{state.largest[0][half], state.sum[0][half]}.factor(all);
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
        *reinterpret_cast<float2*>(mine.values(row, d * 8 + this->lane % 4 * 2)) = {
            state.value[0][d][half * 2] * factor, state.value[0][d][half * 2 + 1] * factor};
      }
      if (this->warp_n == 0 && this->lane % 4 == 0) *to.state(row) = {all.largest, all.sum};
    }
    __syncthreads();
    for (int i = threadIdx.x; i < valid_rows() * S::kDim / 4; i += S::kThreads) {
      const int row = i / (S::kDim / 4), d = i % (S::kDim / 4) * 4;
      float4 sum{};
#pragma unroll
      for (int warp = 0; warp < S::kWarpsN; ++warp) {
        const float4 x = *reinterpret_cast<const float4*>(sums_of_warp(warp).values(row, d));
        sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
      }
      *reinterpret_cast<float4*>(to.values(row, d)) = sum;
    }
  }

  // Writes this block's share of the rows from the first `active` blocks' sums. Returns whether a value is NaN.
  __device__ bool join_blocks(int active) const {
    bool nan = false;
    for (int i = static_cast<int>(rank) * S::kThreads + threadIdx.x; i < valid_rows() * S::kDim / 4;
         i += static_cast<int>(blocks) * S::kThreads) {
      const int row = i / (S::kDim / 4), d = i % (S::kDim / 4) * 4;
      const uint32_t state_at = shared_address(joined_sums().state(row)),
                     values_at = shared_address(joined_sums().values(row, d));
      float2 state[kMostClusterBlocks];
      float4 value[kMostClusterBlocks];
#pragma unroll
      for (int block = 0; block < kMostClusterBlocks; ++block) {
        if (block >= active) continue;
        state[block] = load_state(address_in(state_at, block));
        value[block] = load_values(address_in(values_at, block));
      }
      PartialState all;
      float4 sum{};
#pragma unroll
      for (int block = 0; block < kMostClusterBlocks; ++block) {
        if (block >= active || state[block].y == 0) continue;
        const PartialState part{state[block].x, state[block].y}, next = all.joined(part);
        const float a = all.factor(next), b = part.factor(next);
        const float4 x = value[block];
        sum = {PartialState::joined_value(sum.x, a, x.x, b), PartialState::joined_value(sum.y, a, x.y, b),
               PartialState::joined_value(sum.z, a, x.z, b), PartialState::joined_value(sum.w, a, x.w, b)};
        all = next;
      }
      const int token = this->axis.span.q_off + this->token_of(row), head = this->head_of(row);
      const RowResult result{this->p, {}, 0};
      if (d == 0) result.state(token, head, all.largest, all.sum);
      nan |= result.template values<typename S::T>(token, head, d, sum.x, sum.y, all.sum);
      nan |= result.template values<typename S::T>(token, head, d + 2, sum.z, sum.w, all.sum);
    }
    return nan;
  }
};

template <class S>
__device__ inline void attend_cluster_block(const AttentionParams& p, char* shared) {
  // Spans, pages and the keys that were cached before this step are there (DeviceMetadata): they are read, and the
  // first tiles are on their way, while the kernels ahead make queries and new keys.
  const int group = p.heads / p.kv_heads;
  const TilePlace place = locate_tile(p.spans, p.requests, S::kRows, static_cast<int>(blockIdx.z), group);
  if (place.request < 0) return pdl_wait();  // the whole cluster has no rows; nobody may begin before it ends
  const KeyAxis axis(p, place.request);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  ClusterBlock<S> b{{p,
                     axis,
                     shared,
                     static_cast<int>(blockIdx.y),
                     place.tile * S::kRows,
                     axis.span.q_len * group,
                     group,
                     lane,
                     0,
                     warp,
                     {},
                     {}},
                    blockIdx.x,
                    gridDim.x};
  const int last = b.valid_rows() - 1;
  b.top = axis.row(p, b.token_of(0)), b.bottom = axis.row(p, b.token_of(last));
  const TileRange range = TileRange::of<S::kKeys>(p, axis, b.top, b.bottom.end);
  const int step = static_cast<int>(b.blocks), begin = static_cast<int>(b.rank);
  const int active = min(range.count, step);
  const auto load = [&](int i, int stage) {
    if (i < range.count) b.load_own_keys(range.tile(i), stage);
  };
  const auto is_cached = [&](int i) {
    return i < range.count && !p.encoder && (range.tile(i) + 1) * S::kKeys <= axis.ctx;
  };
  const int early = !is_cached(begin) ? 0 : is_cached(begin + step) ? 2 : 1;  // of the two tiles under way
  for (int i = 0; i < early; ++i) load(begin + i * step, i);
  commit_copies();
  pdl_wait();

  if (begin < active) {
    b.load_queries();
    if (early < 1) load(begin, 0);
    commit_copies();
    if (early < 2) load(begin + step, 1);
    commit_copies();
    MmaState<S> state;
    begin_rows(b, last, state);
    const bool plain = !p.encoder && axis.span.hole_end == axis.span.hole_begin && p.window == kNoWindow;
    for (int i = begin, stage = 0; i < range.count; i += step, stage ^= 1) {
      wait_copies<1>();
      if (i == begin) __syncthreads();  // all warps copied the queries
      __syncwarp();
      const int tile = range.tile(i);
      const bool masked = !plain || (tile + 1) * S::kKeys > b.top.end;
      float s[1][S::kWarpKeys / 8][4];
      scores_of<S>(b, stage, s);
      soften<S>(b, tile, masked, state, s);
      add_values<S>(b, stage, s, state);
      __syncwarp();  // this stage's tile has been read
      load(i + 2 * step, stage);
      commit_copies();
    }
    wait_copies<0>();
    __syncthreads();  // the pipe's memory takes the sums
    b.join_warps(state);
  }
  cluster_arrive_release();
  pdl_launch_dependents();  // earlier, what it asks of memory would be in the way of the keys
  cluster_wait_acquire();
  const bool nan = b.join_blocks(active);
  cluster_arrive_release();
  cluster_wait_acquire();  // nobody reads this block's memory any more, and all rows are written
  if (__syncthreads_or(nan)) redo_rows<S>(b, place.request);
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads) attend_cluster(const __grid_constant__ AttentionParams p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  attend_cluster_block<S>(p, shared);
#endif
}

template <class S>
void launch_cluster(const AttentionParams& p, int64_t tiles, int blocks, const Stream& stream) {
  // Tiles that no request has come last.
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(tiles));
  launch_pdl(stream, attend_cluster<S>, grid, dim3(S::kThreads), S::kSharedBytes, p, "paged_attention",
             {.cluster = static_cast<unsigned>(blocks)});
}

template <class T>
void attend_cluster_of(const AttentionParams& p, int64_t tiles, int blocks, const Stream& stream) {
  const int dim = p.head_dim > p.v_head_dim ? p.head_dim : p.v_head_dim;
  if (dim <= 64) {
    launch_cluster<ClusterShape<T, 64>>(p, tiles, blocks, stream);
  } else if (dim <= 128) {
    launch_cluster<ClusterShape<T, 128>>(p, tiles, blocks, stream);
  } else {
    launch_cluster<ClusterShape<T, 256>>(p, tiles, blocks, stream);
  }
}

}  // namespace headrace::cuda
