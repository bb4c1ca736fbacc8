// FlashAttention of 16-bit floats by mma.sync. A CTA has kRows rows, packed as (token, query head of the GQA group), so
// one pass over K and V serves the whole group. CTAs that share rows process KV splits; a second kernel merges them.
// Source: Dao 2023, FlashAttention-2; Dao et al. 2023, Flash-Decoding.
#pragma once
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/request_tiles.cuh"
#include "headrace/ops/cuda/attention/sm80/fmha_plan.h"
#include "headrace/ops/cuda/attention/sm80/fmha_rows.cuh"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {

// Batch-invariant mode: a row's merged state of the previous fixed splits. It lies in local memory, since registers are
// full.
template <class S>
struct Stash {
  float value[S::kRowTiles][S::kDim / 8][4];
  PartialState sum[S::kRowTiles][2];

  __device__ void clear() {
    for (int m = 0; m < S::kRowTiles; ++m) sum[m][0] = sum[m][1] = {};
  }
  // Merges the previous splits into a split's state.
  __device__ void add_to(MmaState<S>& state) const {
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const PartialState before = sum[m][half], mine{state.largest[m][half], quad_sum(state.sum[m][half])};
        const PartialState all = before.merged_with(mine);
        const float a = before.factor(all), b = mine.factor(all);
        state.largest[m][half] = all.largest;
        state.sum[m][half] = threadIdx.x % 4 == 0 ? all.sum : 0;  // one lane of the four that share the row
        if (before.sum == 0) continue;
#pragma unroll
        for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
          for (int j = half * 2; j < half * 2 + 2; ++j) {
            state.value[m][d][j] = PartialState::merged_value(value[m][d][j], a, state.value[m][d][j], b);
          }
        }
      }
    }
  }
  // Stores a split's state, merged with the previous ones, and resets it.
  __device__ void take(MmaState<S>& state) {
    add_to(state);
#pragma unroll
    for (int m = 0; m < S::kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[m][half] = {state.largest[m][half], quad_sum(state.sum[m][half])};
        state.largest[m][half] = -INFINITY, state.sum[m][half] = 0;
      }
#pragma unroll
      for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
        for (int j = 0; j < 4; ++j) value[m][d][j] = state.value[m][d][j], state.value[m][d][j] = 0;
      }
    }
  }
};

// One CTA per SM is enough. Without this bound ptxas spills to make room for a third CTA in some shapes.
template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    attend_tiles(const __grid_constant__ AttentionParams p, const __grid_constant__ SplitPlan plan) {
  extern __shared__ __align__(128) char shared[];
  const int group = p.heads / p.kv_heads, tile_index = gridDim.x - 1 - blockIdx.x;  // long causal tiles first
  const TilePlace place = locate_tile(p.spans, p.requests, S::kRows, tile_index, group);
  if (place.request < 0) return;
  const KeyAxis axis(p, place.request);
  MmaBlock<S> b{p, axis, shared, static_cast<int>(blockIdx.y), place.tile * S::kRows, axis.span.q_len * group, group};
  b.lane = threadIdx.x % 32;
  b.warp_m = threadIdx.x / 32 % S::kWarpsM, b.warp_n = threadIdx.x / 32 / S::kWarpsM;
  b.top = axis.row(p, b.token_of(0));
  const int last = min(b.row0 + S::kRows, b.rows) - 1 - b.row0;
  b.bottom = axis.row(p, b.token_of(last));
  const TileRange range = TileRange::of<S::kKeys>(p, axis, b.top, b.bottom.end);
  const int part = blockIdx.z;
  PartTiles tiles(range, plan, part);
  const int begin = tiles.begin, end = tiles.end;
  if (part > 0 && begin >= end) return;  // split 0 writes rows that see no key

  MmaState<S> state;
  begin_rows(b, last, state);

  b.load_queries();
#pragma unroll
  for (int i = 0; i < S::kStages - 1; ++i) {
    if (begin + i < end) b.load(range.tile(begin + i), i);
    commit_copies();
  }
  const bool plain = !p.encoder && axis.span.hole_end == axis.span.hole_begin && p.window == kNoWindow;
  const bool has_rows = b.row0 + b.warp_m * S::kRowTiles * 16 < b.rows;
  Stash<S> local, *stash = &local;
  if constexpr (S::kStrict) {
    asm volatile("" : "+l"(stash));  // hides from the compiler that these could be registers
    stash->clear();
  }
  for (int i = begin, stage = 0; i < end; ++i) {
    wait_copies<S::kStages - 2>();
    __syncthreads();
    const int ahead = i + S::kStages - 1;
    if (ahead < end) b.load(range.tile(ahead), (stage + S::kStages - 1) % S::kStages);
    commit_copies();
    if constexpr (S::kFp8) {
      b.unpack_codes(stage);
      __syncthreads();
    }
    if (has_rows) {
      const int tile = range.tile(i);
      const bool masked = !plain || (tile + 1) * S::kKeys > b.top.end;
      float s[S::kRowTiles][S::kWarpKeys / 8][4];
      scores_of(b, stage, s);
      soften(b, tile, masked, state, s);
      add_values(b, stage, s, state);
    }
    stage = (stage + 1) % S::kStages;
    if constexpr (S::kStrict) {
      if (i + 1 == tiles.cut && i + 1 < end) {
        stash->take(state);
        tiles.next_cut(range, plan);
      }
    }
  }
  wait_copies<0>();
  if constexpr (S::kStrict) {
    if (plan.group_tiles != 0) stash->add_to(state);
  }
  const RowResult result{p, plan, part};
  bool nan;
  if constexpr (S::kWarpsN > 1) {
    nan = write_merged(b, state, result);
  } else {
    nan = write_own(b, state, result);
  }
  if (__syncthreads_or(nan) && threadIdx.x < 128) redo_rows(b, place.request);
}

template <class S>
int blocks_per_sm(const Stream& stream) {
  return resident_blocks(stream, reinterpret_cast<const void*>(attend_tiles<S>), S::kThreads, S::kSharedBytes,
                         "paged_attention: occupancy");
}

template <class S>
SplitPlan split_plan(const AttentionParams& p, const AttentionShape& shape, int64_t tiles, const Stream& stream) {
  SplitPlan plan{.min_tiles = kLeastSplitTiles};
  if (shape.determinism == Determinism::kStrict) plan.group_tiles = kFixedSplitKeys / S::kKeys;
  const int64_t rows = int64_t{p.tokens} * p.heads, row_bytes = (p.v_head_dim + 2) * int64_t{sizeof(float)};
  const int parts = mma_splits({.blocks = tiles * p.kv_heads,
                                .room = int64_t{stream.num_sms} * blocks_per_sm<S>(stream),
                                .max_keys = shape.max_keys,
                                .tile_keys = S::kKeys,
                                .fits = static_cast<int64_t>(stream.scratch_bytes) / (rows * row_bytes),
                                .determinism = shape.determinism});
  if (parts < 2) return plan;
  plan.parts = parts;
  plan.states = static_cast<float2*>(stream.scratch);
  plan.values = reinterpret_cast<float*>(plan.states + rows * parts);
  return plan;
}

template <class S>
void launch(const AttentionParams& p, const AttentionShape& shape, int64_t tiles, const Stream& stream) {
  static_assert(S::kSharedBytes <= kLeastSharedBytes, "this is what every device from sm_80 on runs");
  allow_shared(stream, attend_tiles<S>, S::kSharedBytes, "paged_attention");
  const SplitPlan plan = split_plan<S>(p, shape, tiles, stream);
  if (plan.values != nullptr) {  // splits without keys stay at zero
    check_cuda(cudaMemsetAsync(plan.states, 0, static_cast<size_t>(p.tokens) * p.heads * plan.parts * sizeof(float2),
                               stream.handle),
               "paged_attention: clearing states");
  }
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.kv_heads), static_cast<unsigned>(plan.parts));
  attend_tiles<S><<<grid, S::kThreads, S::kSharedBytes, stream.handle>>>(p, plan);
  if (plan.values != nullptr) merge_splits_sm80(p, plan, stream);
  check_launch("paged_attention");
}

// All shapes of a head size have KV tiles of one size, so a row's sums have one order in batch-invariant mode, however
// it is batched. For heads of 256, two stages of 64 keys would exceed kLeastSharedBytes. Their tiles have 32 keys,
// which two warps share, since an MMA takes 16.
template <class T, int kDim, PoolElements kPool>
void fmha_mma_of(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  constexpr bool kWide = kDim > 128;
  constexpr int kStages = 2, kTallWarps = kWide ? 4 : 8, kKeys = kWide ? 32 : 64, kSharers = kKeys / 16;
  constexpr int kDecodeStages = kDim == 64 ? 4 : kDim == 128 && kPool == PoolElements::kFp8 ? 3 : 2;
  using Decode = MmaShape<T, kPool, kDim, 4 / kSharers, kSharers, 1, kKeys, kDecodeStages>;
  using Small = MmaShape<T, kPool, kDim, 4, 1, 1, kKeys, kStages>;
  using Tall = MmaShape<T, kPool, kDim, kTallWarps, 1, 1, kKeys, kStages>;
  if (shape.determinism == Determinism::kFast && shape.max_rows <= 16) {
    launch<Decode>(p, shape, shape.tiles16, stream);
  } else if (kTallWarps == 4 || shape.max_rows <= 64) {
    launch<Small>(p, shape, shape.tiles64, stream);
  } else {
    launch<Tall>(p, shape, shape.tiles128, stream);
  }
}

}  // namespace headrace::cuda
