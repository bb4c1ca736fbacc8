// Parameters, tile scheduler and shared-memory layout of small_m_gemm.cuh.
#pragma once
#include "headrace/ops/cuda/gemm/gemm_common.cuh"
#include "headrace/ops/cuda/gemm/sm90/small_m_gemm_plan.h"

namespace headrace::cuda::small_m {

static_assert(SmallMGemmPlan::kParts == kSegments && SmallMGemmPlan::kPartLen == cuda::kPartLen);

inline constexpr int kMultipliers = 128, kProducers = 2, kThreads = kMultipliers + kProducers * 32, kWarps = 4;
inline constexpr int kRowBytes = SmallMGemmPlan::kChunk * 2;  // of a row of a chunk

struct Params {
  CUtensorMap x, weights[2];  // [64, M, K / 64] and [64, N, K / 64] if K has whole chunks, else [K, rows]
  Result result;
  int rows, out, tiles;
  int chunks;  // of K
  bool whole_chunks;
  int stages, stage_bytes, x_bytes;  // of the pipeline, of a stage, and of the x of one of its chunks
  int blocks, join_bytes;
  int steps, steps_more;    // stages of K that each CTA of a cluster takes; the first ones take one more
  int parts;                // K splits of a CTA
  int summands;             // of a result
  int warps;                // warps with rows of x
  int share, whole_shares;  // units of a tile that a CTA adds up; the last CTAs have one less
};

// kTurnedRows: rows of x, and zeros, that are N of the MMA with swap-AB; 0: not swapped.
template <class T, int kTileColumns, int kTileWeights, SmallMGemmPlan::Order kOrder, int kTurnedRows, bool kOneBlock>
struct Shape {
  using Element = T;
  static constexpr bool kParts = kOrder == SmallMGemmPlan::Order::kParts;
  static constexpr bool kTurned = kTurnedRows > 0;
  static constexpr bool kAlone = kOneBlock;                      // no clusters
  static constexpr bool kHalves = kTurned && kTileWeights == 2;  // a unit's two weights are in two warps
  static constexpr int kColumns = kTileColumns, kWeights = kTileWeights;
  static constexpr int kTiles = (kTurned ? kTurnedRows : kColumns) / 8;  // of a warp's sums
  static constexpr int kWeightColumns = kColumns / kWeights;
  static constexpr int kUnitTiles = kTurned ? kTiles : kTiles / kWeights;  // units of a warp, or halves of units
  static constexpr int kChunks = SmallMGemmPlan::kStageChunks, kGroup = SmallMGemmPlan::group_of(kColumns);
  static_assert(kGroup % kChunks == 0 &&
                SmallMGemmPlan::kFewestBoxRows + kChunks * kColumns >= 64);  // the MMA reads 64 rows
  static constexpr int kChunkBytes = kColumns * kRowBytes;                   // of weights
};

// Rank in the cluster. Single CTAs are not launched as clusters.
template <class S>
__device__ int block_of_cluster() {
  int value = 0;
  if constexpr (!S::kAlone) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
  return value;
}
template <class S>
__device__ int cluster_of_block() {
  int value = static_cast<int>(blockIdx.x);
  if constexpr (!S::kAlone) asm("mov.u32 %0, %%clusterid.x;" : "=r"(value));
  return value;
}
template <class S>
__device__ int num_clusters() {
  int value = static_cast<int>(gridDim.x);
  if constexpr (!S::kAlone) asm("mov.u32 %0, %%nclusterid.x;" : "=r"(value));
  return value;
}

// Tile scheduler of a CTA: a tile, and a stage of the CTA's part of K. In batch-invariant mode the chunks of a stage
// belong to neighbouring K splits of gemm_common.cuh, one chunk each. The stages of a group of splits follow one
// another, pass by pass.
template <class S>
struct Work {
  const Params& p;
  int rank, tile, chunk, group, of_group = 0, step = 0;
  bool first = true;
  __device__ explicit Work(const Params& params)
      : p(params), rank(block_of_cluster<S>()), tile(cluster_of_block<S>()), chunk(first_chunk()), group(chunk) {}
  __device__ bool inside() const { return tile < p.tiles; }
  __device__ void next_tile() { tile += num_clusters<S>(), first = false; }
  // Stages of a tile in default mode.
  __device__ int steps() const { return p.steps + (rank < p.steps_more ? 1 : 0); }
  __device__ void next() {
    if constexpr (S::kParts) {
      chunk += S::kChunks, of_group += S::kChunks;
      if (of_group < S::kGroup) return;
      chunk += kSegments - S::kGroup, of_group = 0;
      if (chunk < p.chunks) return;
      group += S::kGroup, chunk = group;
      if (group < (rank + 1) * p.parts) return;
    } else {
      chunk += S::kChunks;
      if (++step < steps()) return;
    }
    step = 0, chunk = group = first_chunk();
    next_tile();
  }

 private:
  __device__ int first_chunk() const {
    return S::kParts ? rank * p.parts : (p.steps * rank + min(rank, p.steps_more)) * S::kChunks;
  }
};

struct Place {
  int stages, stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// A stage has the x of its chunks, then their weights. The MMA reads 64 rows of x. Where there are fewer, it reads what
// follows them and gives result rows that are not used.
struct Shared {
  uint32_t memory;
  int num_stages, stage_bytes, x_bytes, join_bytes;
  template <class S>
  __device__ uint32_t weights(int i) const {
    return x(i) + S::kChunks * x_bytes;
  }
  __device__ uint32_t x(int i) const { return memory + i * stage_bytes; }
  __device__ uint32_t join() const { return memory + num_stages * stage_bytes; }
  __device__ uint32_t full(int i) const { return join() + join_bytes + i * 16; }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
  __device__ uint32_t sent() const { return full(num_stages); }
  __device__ uint32_t taken() const { return sent() + 8; }
};

}  // namespace headrace::cuda::small_m
