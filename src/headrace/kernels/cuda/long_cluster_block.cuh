// A block of a long cluster: how its keys come to shared memory and what it makes of them. A warp copies the keys that
// it works on itself, sixteen of each tile, so that no warp waits for another.
#pragma once
#include "headrace/kernels/cuda/paged_attention_cluster.cuh"
#include "headrace/kernels/cuda/paged_attention_long_cluster.h"
#include "headrace/kernels/cuda/read_once.cuh"

namespace headrace::cuda {

template <class T, int kDim, int kWarps, int kStages>
struct LongClusterShape : MmaShape<T, PoolOf::kFloats, kDim, 1, kWarps, 1, 16 * kWarps, kStages> {
  using Base = MmaShape<T, PoolOf::kFloats, kDim, 1, kWarps, 1, 16 * kWarps, kStages>;
  static constexpr int kStride = kDim + 8;  // floats of a row of sums: neighbouring rows begin in other banks
  static constexpr int kSumsBytes = Base::kRows * (kStride * 4 + 8);  // of a warp, or of the block
  static constexpr int kJoinedAt = kWarps * kSumsBytes;               // these and the warps' take the pipe's memory
  // What the blocks of the cluster send to this one: states of all rows, and its share of the values.
  static constexpr int kSentStatesAt = Base::kPipeBytes,
                       kSentValuesAt = kSentStatesAt + kMostLongBlocks * Base::kRows * 8;
  static constexpr int kSharedBytes = kSentValuesAt + Base::kRows * kDim * 4;
  static constexpr bool kKeepsQueries = kDim <= 128;  // in registers
  static_assert(kJoinedAt + kSumsBytes <= Base::kPipeBytes && int(sizeof(RowScratch)) <= Base::kPipeBytes);
};

#if __CUDA_ARCH__ >= 900

template <class S>
struct LongClusterBlock : ClusterBlock<S> {
  using T = typename S::T;
  TileRange range;
  bool plain = false;   // every cached key is seen
  uint64_t policy = 0;  // keys are read once: what other kernels need again stays in the L2, this one's code too

  // Whether all keys of a tile lie in the pool and every row of the block sees them.
  __device__ bool whole(int tile) const { return plain && (tile + 1) * S::kKeys <= min(this->axis.ctx, this->top.end); }
  // The page of this warp's keys of the range's tile `i`, where it is a whole one.
  __device__ int page_of(int i) const {
    if (i >= range.count || !whole(range.tile(i))) return 0;
    const int key = range.tile(i) * S::kKeys + this->warp_n * S::kWarpKeys;
    return this->p.page_table[this->axis.page_row * this->p.table_stride + (key >> this->p.page_shift)];
  }
  // Where eight elements of a key begin.
  __device__ static const T* place_of(const AttentionParams& p, const PagedSide& side, int kv_head, int64_t page,
                                      int key, int chunk) {
    return static_cast<const T*>(side.data) + page * side.page_stride + kv_head * side.head_stride +
           (key & (p.page_size - 1)) * side.slot_stride + chunk * 8;
  }

  // Where the first chunk that this lane copies of a stage's keys goes.
  __device__ uint32_t first_chunk(int stage) const {
    return shared_address(this->k_tile(stage)) +
           swizzled<S::kChunks>(this->warp_n * S::kWarpKeys + this->lane / 8, this->lane % 8);
  }
  // Eight lanes copy a row: every fourth of the warp's is this lane's. `to`: first_chunk of the stage.
  __device__ void load_whole(int tile, uint32_t to, int page) const {
    const int key = tile * S::kKeys + this->warp_n * S::kWarpKeys + this->lane / 8, chunk = this->lane % 8;
    load_rows(to, place_of(this->p, this->p.k, this->kv_head, page, key, chunk), this->p.k.slot_stride);
    load_rows(to + S::kTileBytes, place_of(this->p, this->p.v, this->kv_head, page, key, chunk), this->p.v.slot_stride);
  }
  __device__ void load_rows(uint32_t to, const T* from, int64_t slot_stride) const {
#pragma unroll
    for (int j = 0; j < S::kWarpKeys; j += 4) {
#pragma unroll
      for (int i = 0; i < S::kChunks; i += 8)  // the fourth row's swizzle is the first's but for one bit
        copy16((j % 8 == 0 ? to : to ^ 64) + (j * S::kChunks + i) * 16, from + j * slot_stride + i * 8, policy);
    }
  }
  // The range's tile `i`, if there is one, to stage `stage`, in a group of copies of its own.
  __device__ void load_tile(int i, int stage, uint32_t to, int page) const {
    if (i < range.count) {
      if (const int tile = range.tile(i); whole(tile)) {
        load_whole(tile, to, page);
      } else {
        this->load_own_keys(tile, stage);
      }
    }
    commit_copies();
  }

  using Queries = uint32_t[S::kKeepsQueries ? S::kDim / 16 : 1][4];
  using Scores = float[S::kWarpKeys / 8][4];
  __device__ void read_queries(Queries& q) const {
    if constexpr (S::kKeepsQueries) {
#pragma unroll
      for (int d = 0; d < S::kDim / 16; ++d)
        load_tiles(q[d], shared_address(this->shared) + swizzled<S::kChunks>(this->lane % 16, d * 2 + this->lane / 16));
    }
  }
  // Scores of the warp's keys; of even and of odd columns apart, since a product waits for the one before.
  __device__ void find_scores(const Queries& q, int stage, Scores& s) const {
    const uint32_t k_at = shared_address(this->k_tile(stage));
    const int row = this->warp_n * S::kWarpKeys + (this->lane & 7) + (this->lane >> 4) * 8;
    float sums[2][2][4] = {};
#pragma unroll
    for (int d = 0; d < S::kDim / 16; ++d) {
      uint32_t k[4];
      load_tiles(k, k_at + swizzled<S::kChunks>(row, d * 2 + (this->lane >> 3 & 1)));
      mma16816<T>(sums[d % 2][0], q[d], k[0], k[1]);
      mma16816<T>(sums[d % 2][1], q[d], k[2], k[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] = sums[0][n][j] + sums[1][n][j];
    }
  }

  // What no row of the block may need is together, away from the loop: branches cost as much as a product.
  __device__ void cap(Scores& s) const {
#pragma unroll
    for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[n][j] = this->p.cap * kLog2e * tanhf(s[n][j] * this->p.scale / this->p.cap);
    }
  }
  __device__ void hide(int tile, const MmaState<S>& state, Scores& s) const {
#pragma unroll
    for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = tile * S::kKeys + this->warp_n * S::kWarpKeys + n * 8 + this->lane % 4 * 2 + j % 2;
        if (!this->axis.sees(this->p, state.row[0][j / 2], key)) s[n][j] = -INFINITY;
      }
    }
  }
  // Scores to weights in place; brings the state to the new largest scores.
  __device__ void soften(int tile, MmaState<S>& state, Scores& s) const {
    if (this->p.cap > 0) cap(s);
    if (!whole(tile)) hide(tile, state, s);
    const float to_log2 = this->p.cap > 0 ? 1.0f : this->p.scale * kLog2e;
    float keep[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float top = fmaxf(fmaxf(s[0][half * 2], s[0][half * 2 + 1]), fmaxf(s[1][half * 2], s[1][half * 2 + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float largest = fmaxf(state.largest[0][half], top * to_log2);
      const float base = largest == -INFINITY ? 0.0f : largest;
      keep[half] = exp2_fast(state.largest[0][half] - base);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < S::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int j = half * 2; j < half * 2 + 2; ++j) sum += s[n][j] = exp2_fast(fmaf(s[n][j], to_log2, -base));
      }
      state.largest[0][half] = largest;
      state.sum[0][half] = fmaf(state.sum[0][half], keep[half], sum);
    }
    if (!__any_sync(0xffffffffu, keep[0] != 1 || keep[1] != 1)) return;
#pragma unroll
    for (int d = 0; d < S::kDim / 8; ++d) {
#pragma unroll
      for (int j = 0; j < 4; ++j) state.value[0][d][j] *= keep[j / 2];
    }
  }

  // The sums of this block's tiles: `first`, `first` + `step` and so on. There is one at least.
  __device__ void attend(int first, int step, MmaState<S>& state) const {
    constexpr int kAhead = S::kStages - 1;  // tiles under way while one is in use
    int pages[S::kStages];
#pragma unroll
    for (int n = 0; n < S::kStages; ++n) pages[n] = page_of(first + n * step);
    this->load_queries();
    const uint32_t stage_0 = first_chunk(0);
#pragma unroll
    for (int n = 0; n < kAhead; ++n) load_tile(first + n * step, n, stage_0 + n * S::kStageBytes, pages[n]);
    begin_rows(*this, this->valid_rows() - 1, state);
    int page = pages[kAhead];
    // Goes round with the stages. Made of the stage's number, ptxas 13.0 takes the part that all lanes share to a
    // uniform register, which copies with a policy have no room for: an illegal instruction.
    uint32_t to = stage_0 + kAhead * S::kStageBytes;
    Queries q;
    for (int i = first, stage = 0; i < range.count; i += step) {
      load_tile(i + kAhead * step, stage == 0 ? kAhead : stage - 1, to, page);
      to = stage == 0 ? stage_0 : to + S::kStageBytes;
      page = page_of(i + S::kStages * step);
      if (i + S::kStages * step >= range.count) let_next_start();  // all keys are under way
      wait_copies<kAhead>();
      if (i == first) {
        __syncthreads();  // all warps copied the queries
        read_queries(q);
      }
      __syncwarp();
      float s[1][S::kWarpKeys / 8][4];
      if constexpr (S::kKeepsQueries) {
        find_scores(q, stage, s[0]);
      } else {
        scores_of<S>(*this, stage, s);
      }
      soften(range.tile(i), state, s[0]);
      add_values<S>(*this, stage, s, state);
      __syncwarp();  // this stage's tile has been read
      stage = stage == kAhead ? 0 : stage + 1;
    }
    wait_copies<0>();
    __syncthreads();  // the pipe's memory takes the sums
  }
};

#endif

}  // namespace headrace::cuda
