// Cluster decode: batch-invariant split-KV attention of few rows. A cluster of CTAs processes a KV split that is one
// CTA's work otherwise, and loads keys all the time. There is no plan and no second kernel: the last of several
// clusters merges their splits. Default mode uses it too: unchanged for few keys; for many, with splits as long as the
// clusters that fill the device make them.
#pragma once
#include "headrace/ops/cuda/arch/last_block.cuh"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_rows.cuh"
#include "headrace/ops/cuda/attention/sm90/decode_cluster/cluster_decode_block.cuh"
#include "headrace/ops/cuda/elementwise/gate.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A lane's final values of a row and a chain of MMAs: two columns and the two that are eight further on.
struct ClusterDecodeTotal {
  PartialState state;
  float4 value{};

  __device__ void add(const PartialState& next, const float4& y) {
    if (next.sum == 0) return;
    const PartialState all = state.merged_with(next);
    const float a = state.factor(all), b = next.factor(all);
    float4& x = value;
    x = {PartialState::merged_value(x.x, a, y.x, b), PartialState::merged_value(x.y, a, y.y, b),
         PartialState::merged_value(x.z, a, y.z, b), PartialState::merged_value(x.w, a, y.w, b)};
    state = all;
  }
};

template <class S>
struct ClusterDecode {
  const ClusterDecodeCall& call;
  ClusterDecodeBlock<S> b;
  int work_tile, request;  // work_tile: index of row tile and KV head
  ClusterRounds<S::kBlocks, S::kGroupTiles> rounds;
  int splits;

  // Returns the slot of a split; `ordinal` is its index in merge order. Splits of new keys apart from the cached ones
  // come last.
  __device__ int64_t slot(int ordinal) const {
    return (int64_t{work_tile} * call.slots + ordinal) * S::kBlocks + b.rank;
  }
  __device__ float4* slot_values(int ordinal, int chain, int row_group) const {
    return call.values + ((slot(ordinal) * S::kChains + chain) * S::kRowGroups + row_group) * 32 + b.lane;
  }
  __device__ float2* slot_state(int ordinal, int row) const { return call.states + slot(ordinal) * S::kRows + row; }
  __device__ bool adds_values() const {
    return b.warp_n >= S::kFirstValueWarp && b.warp_n < S::kFirstValueWarp + S::kValueWarps;
  }
  __device__ int value_row(int row_group) const { return row_group * 8 + b.lane % 4 * 2 + (b.lane / 4 & 1); }

  // Neighbouring lanes, which have two rows of a column each, exchange one: each then has a row of two columns.
  __device__ float4 by_row(const float (&x)[4]) const {
    const bool odd = (b.lane & 4) != 0;
    const float low = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 4),
                high = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 4);
    return odd ? make_float4(low, x[1], high, x[3]) : make_float4(x[0], low, x[2], high);
  }

  __device__ void begin() const {
    if (threadIdx.x == 0) b.init_barriers();
    __syncwarp();
    cluster_arrive_release();  // this CTA has begun: others may write to its memory
  }
  struct OwnValues {  // of a value warp
    float4 value[S::kWarpChains][S::kRowGroups];
    uint2 gates[S::kWarpChains][S::kRowGroups];
  };
  __device__ void load_gates(OwnValues& own) const {
#pragma unroll
    for (int i = 0; i < S::kWarpChains * S::kRowGroups; ++i) {
      const int m = i / S::kRowGroups, g = i % S::kRowGroups;
      own.gates[m][g] = gates_of(b.chain_of(m), g);
    }
  }
  __device__ void attend(const ClusterRound& first, OwnValues& own) const {
    begin();
    const int warp = b.warp_n;
    __syncthreads();  // all of the CTA's barriers are initialised
    if (warp == S::kKeyLoader) {
      b.load_all_keys(rounds, first, call.maps.k);
      cluster_wait_acquire();
      return;
    }
    if (warp == S::kValueLoader) {
      b.load_all_values(rounds, first, call.maps.v);
      pdl_launch_dependents();
      cluster_wait_acquire();
      return;
    }
    pdl_wait();
    if (warp < S::kScoreWarps) {
      typename ClusterDecodeBlock<S>::Queries q;
      b.read_queries(q);
      cluster_wait_acquire();
      b.run_scores(rounds, first, q);
      return;
    }
    cluster_wait_acquire();
    int ordinal = rounds.cluster;
    if (warp < S::kKeyLoader) {
      load_gates(own);
      b.run_values(rounds, first, [&](const ClusterRound&, const typename ClusterDecodeBlock<S>::Values& value) {
#pragma unroll
        for (int i = 0; i < S::kWarpChains * S::kRowGroups; ++i) {
          const int m = i / S::kRowGroups, g = i % S::kRowGroups;
          own.value[m][g] = by_row(value[m][g]);
          if (splits > 1) *slot_values(ordinal, b.chain_of(m), g) = own.value[m][g];
        }
        ordinal += rounds.clusters;
      });
    } else {
      b.run_follower(rounds, first, [&](const ClusterRound&, const PartialState& state) {
        const float2 x = make_float2(state.largest, state.sum);
        const int row = b.followed_row();
        if (b.lane % 4 == 0) *(splits > 1 ? slot_state(ordinal, row) : b.state_of(row)) = x;
        ordinal += rounds.clusters;
      });
    }
  }

  // Returns true if this is the last of the row tile's clusters to arrive.
  __device__ bool is_last() const {
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0)
      last = comes_last(call.done + work_tile * S::kBlocks + b.rank, static_cast<unsigned>(rounds.clusters) - 1);
    return __syncthreads_or(last);
  }

  // Returns a lane's first column of a chain: it has this one and the next, and the two that are eight further on.
  __device__ int first_column(int chain) const { return b.rank * S::kColumns + chain * 16 + b.lane / 8 * 2; }
  __device__ const typename S::T* gate_row(int token, int head) const {
    return static_cast<const typename S::T*>(call.gate.data) + token * call.gate.token_stride +
           head * call.gate.head_stride;
  }
  __device__ uint2 gates_of(int chain, int row_group) const {
    const int row = value_row(row_group), d = first_column(chain);
    if (call.gate.data == nullptr || b.row0 + row >= b.rows) return {};
    const auto* from = gate_row(b.axis.span.q_off + b.token_of(row), b.head_of(row)) + d;
    const auto pair = [&](int at) {
      return d + at < b.p.v_head_dim ? __ldcg(reinterpret_cast<const uint32_t*>(from + at)) : 0;
    };
    return {pair(0), pair(8)};
  }
  // Writes the row's values as RowResult does, times their gates. Returns true if one was NaN before that.
  __device__ bool write_gated(const ClusterDecodeTotal& total, int token, int head, int d, const uint2& gates) const {
    using T = typename S::T;
    const AttentionParams& p = b.p;
    const float scale = total.state.sum == 0 ? 0.0f : p.v_scale / total.state.sum;
    T* const to = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride + d;
    const auto put = [&](int at, float x, float y, uint32_t gate) {
      if (d + at >= p.v_head_dim) return false;
      *reinterpret_cast<uint32_t*>(to + at) = gated_pair<T>(gate, pack2<T>(x * scale, y * scale));
      return isnan(x * scale) || isnan(y * scale);
    };
    const bool nan = put(0, total.value.x, total.value.y, gates.x);
    return put(8, total.value.z, total.value.w, gates.y) || nan;
  }
  // Writes one row and chain. Returns true if a value is NaN.
  __device__ bool write(const ClusterDecodeTotal& total, int chain, int row_group, const uint2& gates) const {
    const int row = value_row(row_group);
    if (b.row0 + row >= b.rows) return false;
    const RowResult result{b.p, {}, 0};
    const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
    const PartialState& state = total.state;
    if (b.rank == 0 && chain == 0 && b.lane / 4 < 2) result.state(token, head, state.largest, state.sum);
    const int d = first_column(chain);
    const float4& x = total.value;
    if (call.gate.data != nullptr) return write_gated(total, token, head, d, gates);
    const bool nan = result.template values<typename S::T>(token, head, d, x.x, x.y, state.sum);
    return result.template values<typename S::T>(token, head, d + 8, x.z, x.w, state.sum) || nan;
  }
  // Writes the rows of a single split.
  __device__ bool write_own(const OwnValues& own, bool any_key) const {
    __syncthreads();
    if (!adds_values()) return false;
    bool nan = false;
#pragma unroll
    for (int i = 0; i < S::kWarpChains * S::kRowGroups; ++i) {
      const int m = i / S::kRowGroups, g = i % S::kRowGroups;
      ClusterDecodeTotal total;
      if (any_key) {
        const float2 x = *b.state_of(value_row(g));
        total = {{x.x, x.y}, own.value[m][g]};
      }
      nan |= write(total, b.chain_of(m), g, any_key ? own.gates[m][g] : gates_of(b.chain_of(m), g));
    }
    return nan;
  }
  // Merges all splits of the row tile; all warps share the work. Values are loaded to the memory of keys, each lane's
  // for itself. Behind a warp's values lie the states of the eight rows that its lanes have.
  __device__ bool write_merged() const {
    constexpr int kWarps = S::kThreads / 32, kUnitBytes = 32 * sizeof(float4) + 8 * sizeof(float2),
                  kRoom = S::kWeightsAt / kWarps / kUnitBytes,
                  kTogether = kRoom < 32 ? kRoom / 4 * 4 : 32;  // splits loaded before the first is merged
    float4* const values = b.template at<float4>(b.warp_n * kTogether * kUnitBytes);
    float2* const states = reinterpret_cast<float2*>(values + kTogether * 32);
    bool nan = false;
#pragma unroll 1
    for (int i = b.warp_n; i < S::kChains * S::kRowGroups; i += S::kThreads / 32) {
      const int chain = i / S::kRowGroups, g = i % S::kRowGroups, row = value_row(g) - g * 8;
      const uint2 gates = gates_of(chain, g);
      ClusterDecodeTotal total;
#pragma unroll 1
      for (int base = 0; base < splits; base += kTogether) {
        const int here = min(kTogether, splits - base);
        __syncwarp();  // the previous ones have been merged
#pragma unroll 4
        for (int n = 0; n < here; ++n)
          copy16(shared_address(values + n * 32 + b.lane), slot_values(base + n, chain, g), true);
        commit_copies();
#pragma unroll
        for (int n = b.lane / 8; n < kTogether; n += 4) {
          if (n < here) states[n * 8 + b.lane % 8] = __ldcg(slot_state(base + n, g * 8 + b.lane % 8));
        }
        wait_copies<0>();
        __syncwarp();
#pragma unroll 4
        for (int n = 0; n < here; ++n) {
          const float2 state = states[n * 8 + row];
          total.add({state.x, state.y}, values[n * 32 + b.lane]);
        }
      }
      nan |= write(total, chain, g, gates);
    }
    return nan;
  }
  __device__ void redo() const {
    if (threadIdx.x >= 128) return;
#pragma unroll 1
    for (int row = 0; row < S::kRows && b.row0 + row < b.rows; ++row) redo(row);
  }
  __device__ void redo(int row) const {
    using T = typename S::T;
    static_assert(S::kColumns <= 128);  // a thread writes at most one
    const AttentionParams& p = b.p;
    const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row), first = b.rank * S::kColumns,
              thread = static_cast<int>(threadIdx.x), d = first + thread;
    T* const out = static_cast<T*>(p.out) + token * p.out_token_stride + head * p.out_head_stride + d;
    const bool gates =
        call.gate.data != nullptr && thread < S::kColumns && d < p.v_head_dim && isnan(static_cast<float>(*out));
    attend_row(p, request, token, head, *reinterpret_cast<RowScratch*>(b.shared), RowWrite::kWhereNaN,
               {1, thread, first, S::kColumns});
    if (gates) *out = static_cast<T>(gated<T>(static_cast<float>(gate_row(token, head)[d]), static_cast<float>(*out)));
  }
};

template <class S>
__device__ inline void cluster_decode_block(const ClusterDecodeCall& call, char* shared) {
  const AttentionParams& p = call.p;
  const TilePlace at = locate_tile(p.spans, p.requests, S::kRows, static_cast<int>(blockIdx.y), p.heads / p.kv_heads);
  // the whole cluster has no rows; a kernel may not end before the preceding one
  if (at.request < 0) return pdl_wait();
  const ClusterWork<S> place{call, at};
  if (!place.has_splits()) return pdl_wait();
  ClusterDecode<S> cluster{call, {{{place.block(shared)}}}, place.work_tile, at.request, place.rounds(), place.splits};
  typename ClusterDecode<S>::OwnValues own;
  const ClusterRound first = cluster.rounds.first();
  const bool any_key = first.count() > 0;
  if (any_key) {
    cluster.attend(first, own);
  } else {
    pdl_wait();
  }
  __syncwarp();
  // other CTAs' copies have arrived here: those CTAs may exit
  if constexpr (S::kCopiesWeights) cluster_arrive_relaxed();
  bool nan = false;
  if (place.splits == 1) {
    nan = cluster.write_own(own, any_key);
  } else if (cluster.is_last()) {
    nan = cluster.write_merged();
  }
  if (__syncthreads_or(nan)) cluster.redo();
  if constexpr (S::kCopiesWeights) cluster_wait_acquire();
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) cluster_decode(const __grid_constant__ ClusterDecodeCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  cluster_decode_block<S>(call, shared);
#endif
}

template <class S>
void launch_cluster_decode(const ClusterDecodeCall& call, int64_t tiles, const Stream& stream) {
  const dim3 grid(S::kBlocks, static_cast<unsigned>(tiles), static_cast<unsigned>(call.p.kv_heads * call.clusters));
  launch_pdl(stream, cluster_decode<S>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention",
             {.cluster = S::kBlocks});
}

// Stages and rounds that fit the shared memory.
template <class T, int kRows, int kDim, int kBlocks>
constexpr auto cluster_decode_shape() {
  constexpr int kStages = kDim == 64 ? 2 : 1;  // as many bytes as one stage of heads of 128 or more
  if constexpr (kRows == 8) {
    constexpr int kDepth = kBlocks == 4 ? 2 : 4, kKeyStages = kDim == 64 ? 5 : kBlocks == 8 ? 2 : 3;
    return ClusterDecodeTraits < T, kRows, kDim, kBlocks, kKeyStages, kDim == 64 ? 5 : 3, kDepth > {};
  } else {
    constexpr int kDepth = kBlocks == 2 ? 4 : kBlocks == 4 ? 2 : 3;
    return ClusterDecodeTraits<T, kRows, kDim, kBlocks, 2 * kStages, (kBlocks == 8 ? 2 : 3) * kStages, kDepth>{};
  }
}
template <class T, int kRows, int kDim, int kBlocks>
using ClusterDecodeShape = decltype(cluster_decode_shape<T, kRows, kDim, kBlocks>());

template <class T, int kRows, int kBlocks>
void cluster_decode_in(const ClusterDecodeCall& call, int64_t tiles, const Stream& stream) {
  if (call.kernel_dim == 256) {
    launch_cluster_decode<ClusterDecodeShape<T, kRows, 256, kBlocks>>(call, tiles, stream);
  } else if constexpr (kBlocks <= most_cluster_size(128)) {
    if (call.kernel_dim == 128) {
      launch_cluster_decode<ClusterDecodeShape<T, kRows, 128, kBlocks>>(call, tiles, stream);
    } else {
      launch_cluster_decode<ClusterDecodeShape<T, kRows, 64, kBlocks>>(call, tiles, stream);
    }
  }
}

template <class T, int kRows>
void cluster_decode_of(const ClusterDecodeCall& call, int64_t tiles, int blocks, const Stream& stream) {
  const auto attend = blocks == 8   ? cluster_decode_in<T, kRows, 8>
                      : blocks == 4 ? cluster_decode_in<T, kRows, 4>
                                    : cluster_decode_in<T, kRows, 2>;
  attend(call, tiles, stream);
}

}  // namespace headrace::cuda
