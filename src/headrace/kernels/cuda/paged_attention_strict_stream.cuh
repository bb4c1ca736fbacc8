// Strict attention of up to eight rows: a cluster of blocks takes a group of keys that is one block's work otherwise,
// and brings keys all the time. No plan, no second kernel; the last cluster of several adds up their groups.
#pragma once
#include "headrace/kernels/cuda/attention_mma_rows.cuh"
#include "headrace/kernels/cuda/launch.cuh"
#include "headrace/kernels/cuda/strict_stream_block.cuh"
#include "headrace/kernels/cuda/tiles.cuh"

namespace headrace::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a lane has of a row in the end: of each chain of products two columns and the two that are eight further on.
template <class S>
struct StreamTotal {
  PartSum state;
  float4 value[S::kWarpChains] = {};

  __device__ void add(const PartSum& next, const float4 (&next_value)[S::kWarpChains]) {
    if (next.sum == 0) return;
    const PartSum all = state.joined(next);
    const float a = state.factor(all), b = next.factor(all);
#pragma unroll
    for (int m = 0; m < S::kWarpChains; ++m) {
      float4& x = value[m];
      const float4& y = next_value[m];
      x = {PartSum::joined_value(x.x, a, y.x, b), PartSum::joined_value(x.y, a, y.y, b),
           PartSum::joined_value(x.z, a, y.z, b), PartSum::joined_value(x.w, a, y.w, b)};
    }
    state = all;
  }
};

template <class S>
struct StrictStream {
  const StrictStreamCall& call;
  StreamBlock<S> b;
  int piece, request;  // tile of rows and kv head
  StrictRounds<S::kBlocks, S::kGroupTiles> rounds;
  int groups;

  // Of the row's groups, in the order in which they are added up. New keys apart from the cached ones follow these.
  __device__ int64_t slot(int ordinal) const {
    return (int64_t{piece} * call.max_groups + ordinal) * S::kBlocks + b.rank;
  }
  __device__ float4* slot_values(int ordinal, int m) const {
    return call.values + (slot(ordinal) * S::kChains + b.chain_of(m)) * 32 + b.lane;
  }
  __device__ float2* slot_state(int ordinal, int row) const { return call.states + slot(ordinal) * S::kRows + row; }
  __device__ bool adds_values() const {
    return b.warp_n >= S::kFirstValueWarp && b.warp_n < S::kFirstValueWarp + S::kValueWarps;
  }
  __device__ int value_row() const { return b.lane % 4 * 2 + (b.lane / 4 & 1); }

  // Neighbouring lanes, which have two rows of a column each, exchange one: then each has a row of two columns.
  __device__ float4 by_row(const float (&x)[4]) const {
    const bool odd = (b.lane & 4) != 0;
    const float low = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 4),
                high = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 4);
    return odd ? make_float4(low, x[1], high, x[3]) : make_float4(x[0], low, x[2], high);
  }

  __device__ void begin() const {
    if (threadIdx.x == 0) b.init_barriers();
    __syncwarp();
    cluster_arrive_release();  // this block has begun: others may write to its memory
  }
  __device__ void attend(const StrictRound& first, StreamTotal<S>& total) const {
    begin();
    const int warp = b.warp_n;
    __syncthreads();  // all of the block's barriers are there
    if (warp == S::kKeyLoader) {
      b.load_all_keys(rounds, first, call.maps.k);
      cluster_wait_acquire();
      return;
    }
    if (warp == S::kValueLoader) {
      b.load_all_values(rounds, first, call.maps.v);
      let_next_start();
      cluster_wait_acquire();
      return;
    }
    wait_for_previous();
    if (warp < S::kScoreWarps) {
      typename StreamBlock<S>::Queries q;
      b.read_queries(q);
      cluster_wait_acquire();
      b.run_scores(rounds, first, q);
      return;
    }
    cluster_wait_acquire();
    int ordinal = rounds.part;
    if (warp < S::kKeyLoader) {
      b.run_values(rounds, first, [&](const StrictRound&, const typename StreamBlock<S>::Values& value) {
#pragma unroll
        for (int m = 0; m < S::kWarpChains; ++m) {
          total.value[m] = by_row(value[m]);
          if (groups > 1) *slot_values(ordinal, m) = total.value[m];
        }
        ordinal += rounds.parts;
      });
    } else {
      b.run_follower(rounds, first, [&](const StrictRound&, const PartSum& state) {
        const float2 x = make_float2(state.largest, state.sum);
        if (b.lane % 4 == 0) *(groups > 1 ? slot_state(ordinal, b.lane / 4) : b.state_of(b.lane / 4)) = x;
        ordinal += rounds.parts;
      });
    }
  }

  // Adds up all groups of the piece, where this is the last of its clusters to come here. The others return false.
  __device__ bool join_groups(StreamTotal<S>& total) const {
    constexpr int kTogether = S::kWarpChains > 1 ? 8 : 16;  // groups that are loaded before the first is added
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
      const auto others = static_cast<unsigned>(rounds.parts) - 1;
      unsigned before;  // releases what this block wrote, and acquires what the others did
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                   : "=r"(before)
                   : "l"(call.done + piece * S::kBlocks + b.rank), "r"(others)
                   : "memory");
      last = before == others;
    }
    if (!__syncthreads_or(last)) return false;
    if (!adds_values()) return true;
    total = {};
    for (int base = 0; base < groups; base += kTogether) {
      float2 state[kTogether];
      float4 value[kTogether][S::kWarpChains];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        state[i] = {-INFINITY, 0};
        if (base + i >= groups) continue;
        state[i] = __ldcg(slot_state(base + i, value_row()));
#pragma unroll
        for (int m = 0; m < S::kWarpChains; ++m) value[i][m] = __ldcg(slot_values(base + i, m));
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) total.add({state[i].x, state[i].y}, value[i]);
    }
    return true;
  }

  // Returns whether a value is NaN.
  __device__ bool write(const StreamTotal<S>& total) const {
    const int row = value_row();
    if (!adds_values() || b.row0 + row >= b.rows) return false;
    const RowResult result{b.p, {}, 0};
    const int token = b.axis.span.q_off + b.token_of(row), head = b.head_of(row);
    const PartSum& state = total.state;
    if (b.rank == 0 && b.value_warp() == 0 && b.lane / 4 < 2) result.state(token, head, state.largest, state.sum);
    bool nan = false;
#pragma unroll
    for (int m = 0; m < S::kWarpChains; ++m) {
      const int d = b.rank * S::kColumns + b.chain_of(m) * 16 + b.lane / 8 * 2;
      const float4& x = total.value[m];
      nan |= result.template values<typename S::T>(token, head, d, x.x, x.y, state.sum);
      nan |= result.template values<typename S::T>(token, head, d + 8, x.z, x.w, state.sum);
    }
    return nan;
  }
  __device__ void redo() const {
    if (threadIdx.x >= 128) return;
    for (int row = 0; row < S::kRows && b.row0 + row < b.rows; ++row) {
      attend_row(b.p, request, b.axis.span.q_off + b.token_of(row), b.head_of(row),
                 *reinterpret_cast<RowScratch*>(b.shared), RowWrite::kWhereNaN,
                 {1, static_cast<int>(threadIdx.x), b.rank * S::kColumns, S::kColumns});
    }
  }
};

// The number of groups of a list of tiles.
template <class S>
__device__ int groups_of(const KeyTiles& tiles) {
  int groups = 0;
  for (int i = 0; i < tiles.count; i = min(tiles.group_end(S::kGroupTiles, i), tiles.count)) ++groups;
  return groups;
}

template <class S>
__device__ inline void attend_strict_stream_block(const StrictStreamCall& call, char* shared) {
  const AttentionParams& p = call.p;
  const int z = static_cast<int>(blockIdx.z), part = call.parts == 1 ? 0 : z / p.kv_heads,
            kv_head = z - part * p.kv_heads;
  const int group = p.heads / p.kv_heads;
  const TilePlace place = locate_tile(p.spans, p.requests, S::kRows, static_cast<int>(blockIdx.y), group);
  if (place.request < 0) return wait_for_previous();  // the whole cluster has no rows; nobody may begin before it ends
  const KeyAxis axis(p, place.request);
  const PackedRows packed(group);
  const int row0 = place.tile * S::kRows, rows = axis.span.q_len * group, lane = threadIdx.x % 32;
  const int last = min(row0 + S::kRows, rows) - 1;
  const KeyAxis::Row top = axis.row(p, packed.token(row0)), bottom = axis.row(p, packed.token(last));
  const BlockKeys keys(p, axis, top, bottom);
  const KeyTiles tiles = keys.tiles(S::kKeys);
  // Groups are shared out where the list of tiles is one run.
  const int lowest = tiles.first / S::kGroupTiles;
  const bool one_run = tiles.count <= tiles.cached_count && tiles.hole_tiles == 0;
  const int groups = tiles.count == 0 ? 1
                     : one_run        ? tiles.tile(tiles.count - 1) / S::kGroupTiles - lowest + 1
                                      : groups_of<S>(tiles);
  const int parts = one_run ? min(call.parts, groups) : 1;
  if (part >= parts) return wait_for_previous();
  StrictStream<S> cluster{
      call,
      {{{{{p, axis, shared, kv_head, row0, rows, group, lane, 0, static_cast<int>(threadIdx.x) / 32, top, bottom},
          static_cast<int>(blockIdx.x),
          keys,
          tiles,
          {axis.row(p, packed.token(min(row0 + lane / 4, last))), {}},
          packed,
          p.cap > 0 ? 1.4426950408889634f : p.scale * 1.4426950408889634f}}}},
      static_cast<int>(blockIdx.y) * p.kv_heads + kv_head,
      place.request,
      {tiles, part, parts, lowest},
      groups};
  cluster.b.find_ranges();
  StreamTotal<S> total;
  const StrictRound first = cluster.rounds.first();
  if (first.count() > 0) {
    cluster.attend(first, total);
  } else {
    wait_for_previous();
  }
  if (groups > 1) {
    if (!cluster.join_groups(total)) return;
  } else {
    __syncthreads();
    const float2 x = first.count() > 0 ? *cluster.b.state_of(cluster.value_row()) : float2{-INFINITY, 0};
    total.state = {x.x, x.y};
  }
  const bool nan = cluster.write(total);
  if (__syncthreads_or(nan)) cluster.redo();
}

#endif

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1) attend_strict_stream(const __grid_constant__ StrictStreamCall call) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char shared[];
  attend_strict_stream_block<S>(call, shared);
#endif
}

template <class S>
void launch_strict_stream(const StrictStreamCall& call, int64_t tiles, const Stream& stream) {
  static const bool ready = [] {
    check_cuda(
        cudaFuncSetAttribute(attend_strict_stream<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes),
        "paged_attention: shared memory");
    return true;
  }();
  static_cast<void>(ready);
  const dim3 grid(S::kBlocks, static_cast<unsigned>(tiles), static_cast<unsigned>(call.p.kv_heads * call.parts));
  launch_early(stream, attend_strict_stream<S>, grid, dim3(S::kThreads), S::kSharedBytes, call, "paged_attention",
               S::kBlocks);
}

// Stages and rounds that shared memory has room for.
template <class T, int kBlocks>
void attend_strict_stream_in(const StrictStreamCall& call, int64_t tiles, const Stream& stream) {
  constexpr int kDepth = kBlocks == 4 ? 2 : 4;
  if (call.kernel_dim == 256) {
    constexpr int kKeyStages = kBlocks == 8 ? 2 : 3;
    launch_strict_stream<StrictStreamShape<T, 256, kBlocks, kKeyStages, 3, kDepth>>(call, tiles, stream);
  } else if constexpr (kBlocks <= strict_stream_blocks(128)) {
    if (call.kernel_dim == 128) {
      launch_strict_stream<StrictStreamShape<T, 128, kBlocks, 3, 3, kDepth>>(call, tiles, stream);
    } else {
      launch_strict_stream<StrictStreamShape<T, 64, kBlocks, 5, 5, kDepth>>(call, tiles, stream);
    }
  }
}

template <class T>
void attend_strict_stream_of(const StrictStreamCall& call, int64_t tiles, int blocks, const Stream& stream) {
  const auto attend = blocks == 8   ? attend_strict_stream_in<T, 8>
                      : blocks == 4 ? attend_strict_stream_in<T, 4>
                                    : attend_strict_stream_in<T, 2>;
  attend(call, tiles, stream);
}

}  // namespace headrace::cuda
