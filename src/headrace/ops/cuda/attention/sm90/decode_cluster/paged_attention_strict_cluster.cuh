// Strict attention of few rows, where a step waits for latency: a cluster of blocks takes a group of keys that is one
// block's work otherwise. No plan, no second kernel; the last cluster of several adds up their groups.
#pragma once
#include "headrace/ops/cuda/arch/last_block.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_block.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/strict_cluster_place.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A thread's rows: sums of the groups so far.
template <class S>
struct StrictTotal {
  PartialState state[2];
  float value[S::kWarpChains][4] = {};

  __device__ void add(const PartialState (&next)[2], const float (&next_value)[S::kWarpChains][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (next[half].sum == 0) continue;
      const PartialState all = state[half].joined(next[half]);
      const float a = state[half].factor(all), b = next[half].factor(all);
#pragma unroll
      for (int m = 0; m < S::kWarpChains; ++m) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) {
          value[m][j] = PartialState::joined_value(value[m][j], a, next_value[m][j], b);
        }
      }
      state[half] = all;
    }
  }
};

template <class S>
struct StrictCluster {
  const StrictClusterCall& call;
  StrictBlock<S> b;
  int piece, request;  // tile of rows and kv head
  StrictRounds<S::kBlocks, S::kGroupTiles> rounds;
  int ordinal = rounds.part;  // of the group at hand, among the row's

  __device__ int64_t slot(int group) const {
    return ((int64_t{piece} * call.max_groups + group) * S::kBlocks + b.rank);
  }
  __device__ float4* slot_values(int group, int m) const {
    return call.values + (slot(group) * S::kChains + b.chain_of(m)) * 32 + b.lane;
  }
  __device__ float2* slot_state(int group, int half) const {
    return call.states + slot(group) * S::kRows + b.my_row(0, half);
  }

  // Takes a group's sums out of `state`, which begins anew, to the total or to a slot of their own.
  __device__ void end_group(StrictState<S>& state, StrictTotal<S>& total) {
    PartialState sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      sums[half] = {__fmul_rn(__shfl_sync(0xffffffffu, state.largest, b.my_row(0, half)), b.to_log2),
                    quad_sum(state.sum[half])};
    if (rounds.parts == 1) {
      total.add(sums, state.value);
    } else if (b.has_gemm_sequence()) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (b.warp_n == 0 && b.lane % 4 == 0)
          *slot_state(ordinal, half) = make_float2(sums[half].largest, sums[half].sum);
      }
#pragma unroll
      for (int m = 0; m < S::kWarpChains; ++m)
        *slot_values(ordinal, m) = *reinterpret_cast<const float4*>(state.value[m]);
    }
    ordinal += rounds.parts;
    state = {};
  }

  // Adds up all groups of the piece, where this is the last of its clusters to come here. The others return false.
  __device__ bool join_groups(int groups, StrictTotal<S>& total) const {
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0)
      last = comes_last(call.done + piece * S::kBlocks + b.rank, static_cast<unsigned>(rounds.parts) - 1);
    if (!__syncthreads_or(last)) return false;
    if (!b.has_gemm_sequence()) return true;
#pragma unroll 4
    for (int group = 0; group < groups; ++group) {
      PartialState sums[2];
      float value[S::kWarpChains][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 x = __ldcg(slot_state(group, half));
        sums[half] = {x.x, x.y};
      }
#pragma unroll
      for (int m = 0; m < S::kWarpChains; ++m) {
        const float4 x = __ldcg(slot_values(group, m));
        value[m][0] = x.x, value[m][1] = x.y, value[m][2] = x.z, value[m][3] = x.w;
      }
      total.add(sums, value);
    }
    return true;
  }

  // Returns whether a value is NaN.
  __device__ bool write(const StrictTotal<S>& total) const {
    bool nan = false;
    const RowResult result{b.p, {}, 0};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = b.my_row(0, half);
      if (b.row0 + row >= b.rows || !b.has_gemm_sequence()) continue;
      const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
      const PartialState& state = total.state[half];
      if (b.rank == 0 && b.warp_n == 0 && b.lane % 4 == 0) result.state(token, head, state.largest, state.sum);
#pragma unroll
      for (int m = 0; m < S::kWarpChains; ++m) {
        const int d = b.rank * S::kColumns + b.chain_of(m) * 8 + b.lane % 4 * 2;
        nan |= result.template values<typename S::T>(token, head, d, total.value[m][half * 2],
                                                     total.value[m][half * 2 + 1], state.sum);
      }
    }
    return nan;
  }
  __device__ void redo() const {
    if (threadIdx.x >= 128) return;
#pragma unroll 1
    for (int row = 0; row < S::kRows && b.row0 + row < b.rows; ++row) {
      attend_row(b.p, request, b.axis.span.q_off + b.token_of(row), b.head_of(row),
                 *reinterpret_cast<RowScratch*>(b.shared), RowWrite::kWhereNaN,
                 {1, static_cast<int>(threadIdx.x), b.rank * S::kColumns, S::kColumns});
    }
  }

  __device__ void begin(const StrictRound& first) const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 6; ++i) barrier_init(b.largest_full(0) + i * 8, 1);
      fence_barrier_init();
      b.expect(first, 0);
    }
    __syncwarp();
    cluster_arrive_release();  // this block has begun: others may write to its memory
  }

  // All rounds of this cluster. While a round's values are added up, the largest scores of the next one travel.
  __device__ void attend(StrictRound now, StrictTotal<S>& total) {
    int2 key_pages = b.key_pages(now);
    typename StrictBlock<S>::ValuePages value_pages;
    b.find_value_pages(now, value_pages);
    begin(now);
    b.load_queries();
    b.load_keys(now, key_pages);
    commit_copies();
    StrictRound next = rounds.after(now);
    key_pages = b.key_pages(next);
    b.load_values(now, value_pages);
    commit_copies();
    StrictState<S> state;
    typename StrictBlock<S>::Scores s;
    wait_copies<1>();
    __syncthreads();
    b.find_scores(now, s);
    __syncthreads();
    cluster_wait_acquire();
    b.send_largest(now, 0);
    b.load_keys(next, key_pages);
    commit_copies();
    __syncthreads();  // all have read the warps' largest scores, which the next round's take the place of
    for (int number = 0;; ++number) {
      const StrictRound following = rounds.after(next);
      const bool more = next.count() > 0;
      key_pages = b.key_pages(following);
      b.find_value_pages(next, value_pages);
      if (more && threadIdx.x == 0) b.expect(next, number + 1);
      float base[2];
      barrier_wait_sent(b.largest_full(number), number >> 1 & 1);
      const unsigned scaled = b.follow(now, number, state, base);
      b.send_weights(now, number, s, base);
      wait_copies<0>();
      __syncwarp();
      b.find_scores(next, s);
      __syncthreads();
      if (more) b.send_largest(next, number + 1);
      if (b.warp_n == S::kWarps - 1) b.send_sums(now, number);
      b.load_keys(following, key_pages);
      commit_copies();
      if (!more) pdl_launch_dependents();
      barrier_wait_sent(b.weights_full(number), number >> 1 & 1);
      b.add_values(now, number, scaled, state);
      barrier_wait_sent(b.added_full(number), number >> 1 & 1);
      b.add_sums(now, number, state);
      if (now.ends_group()) end_group(state, total);
      if (!more) return;
      __syncthreads();  // this round's values have been read
      b.load_values(next, value_pages);
      commit_copies();
      now = next, next = following;
    }
  }
};

template <class S>
__device__ inline void attend_strict_cluster_block(const StrictClusterCall& call, char* shared) {
  pdl_wait();
  const AttentionParams& p = call.p;
  const TilePlace at = locate_tile(p.spans, p.requests, S::kRows, static_cast<int>(blockIdx.y), p.heads / p.kv_heads);
  if (at.request < 0) return;  // the whole cluster has no rows
  const StrictPlace<S> place{call, at};
  if (!place.has_groups()) return;
  StrictCluster<S> cluster{call, {place.block(shared)}, place.piece, at.request, place.rounds()};
  StrictTotal<S> total;
  const StrictRound first = cluster.rounds.first();
  if (first.count() > 0) cluster.attend(first, total);
  if (place.parts > 1 && !cluster.join_groups(place.groups, total)) return;
  if (__syncthreads_or(cluster.write(total))) cluster.redo();
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kResident)
    attend_strict_cluster(const __grid_constant__ StrictClusterCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(128) char shared[];
  attend_strict_cluster_block<S>(call, shared);
#endif
}

template <class S>
void launch_strict_cluster(const StrictClusterCall& call, int64_t tiles, const Stream& stream) {
  const dim3 grid(S::kBlocks, static_cast<unsigned>(tiles), static_cast<unsigned>(call.p.kv_heads * call.parts));
  launch_pdl(stream, attend_strict_cluster<S>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention",
             {.cluster = S::kBlocks});
}

template <class T, int kBlocks>
void attend_strict_cluster_in(const StrictClusterCall& call, int64_t tiles, const Stream& stream) {
  const int dim = call.p.head_dim > call.p.v_head_dim ? call.p.head_dim : call.p.v_head_dim;
  if (dim <= 64) {
    launch_strict_cluster<StrictClusterShape<T, 64, kBlocks>>(call, tiles, stream);
  } else if (dim <= 128) {
    launch_strict_cluster<StrictClusterShape<T, 128, kBlocks>>(call, tiles, stream);
  } else {
    launch_strict_cluster<StrictClusterShape<T, 256, kBlocks>>(call, tiles, stream);
  }
}

template <class T>
void attend_strict_cluster_of(const StrictClusterCall& call, int64_t tiles, int blocks, const Stream& stream) {
  const auto attend = blocks == 8   ? attend_strict_cluster_in<T, 8>
                      : blocks == 4 ? attend_strict_cluster_in<T, 4>
                                    : attend_strict_cluster_in<T, 2>;
  attend(call, tiles, stream);
}

}  // namespace headrace::cuda
