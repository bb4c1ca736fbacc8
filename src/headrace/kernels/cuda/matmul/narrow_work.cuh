// What the threads of narrow_sm90.cuh are told, where each is in its work, and where things lie in shared memory.
#pragma once
#include "headrace/kernels/cuda/matmul/matmul_parts.cuh"
#include "headrace/kernels/cuda/matmul/narrow_plan.h"

namespace headrace::cuda::narrow {

static_assert(NarrowPlan::kParts == kSegments && NarrowPlan::kPartLen == cuda::kPartLen);

inline constexpr int kMultipliers = 128, kThreads = kMultipliers + 32, kWarps = 4;
inline constexpr int kPieceChunks = NarrowPlan::kPieceChunks;
inline constexpr int kBoxBytes = NarrowPlan::kBoxBytes, kRowBytes = NarrowPlan::kChunk * 2;

struct Params {
  CUtensorMap x, weights[2];  // [in, rows] and [in, out]
  Result result;
  int rows, out, tiles;
  int stages, blocks, join_bytes;
  int pieces, pieces_more;  // of 128 elements of `in` that each block of a cluster takes; the first ones take one more
  int part_chunks, parts_more;  // of 64 elements that a part of matmul_parts.cuh has; the first ones have one more
  int parts;                    // of them, that a block has; sums that it hands on are one for each of these, or one
  int share, whole_shares;      // units of a tile's sums that a block adds up; the last blocks have one less
  bool combined;
};

template <class T, int kColumns, int kTileBoxes, NarrowPlan::Order kOrder>
struct Shape {
  using Element = T;
  static constexpr bool kParts = kOrder == NarrowPlan::Order::kParts;
  static constexpr int kWidth = kColumns, kBoxes = kTileBoxes, kTiles = kWidth / 8;
  static constexpr int kChunks = NarrowPlan::kStageBoxes / kBoxes;  // of a stage
  static constexpr int kWeightBytes = NarrowPlan::kStageBoxes * kBoxBytes, kXBytes = kWidth * kRowBytes;
  static constexpr int kStageBytes = kWeightBytes + kChunks * kXBytes;
  static constexpr int kUnits = kTiles * kWarps;  // of a tile's sums: what a warp has of 8 columns
};

// Of the launch. Blocks that are alone are not launched as clusters.
__device__ inline int block_of_cluster(const Params& p) {
  int value = 0;
  if (p.blocks > 1) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(value));
  return value;
}
__device__ inline int cluster_of_block(const Params& p) {
  int value = static_cast<int>(blockIdx.x);
  if (p.blocks > 1) asm("mov.u32 %0, %%clusterid.x;" : "=r"(value));
  return value;
}
__device__ inline int num_clusters(const Params& p) {
  int value = static_cast<int>(gridDim.x);
  if (p.blocks > 1) asm("mov.u32 %0, %%nclusterid.x;" : "=r"(value));
  return value;
}

// Walks over the chunks of a block's parts of matmul_parts.cuh, one part after the other.
struct PartWalk {
  const Params* p;
  int part, end, pass = 0;
  __device__ PartWalk(const Params& params, int rank) : p(&params), part(rank * p->parts), end(part + p->parts) {}
  __device__ int count_of(int number) const { return p->part_chunks + (number < p->parts_more ? 1 : 0); }
  __device__ int count() const { return count_of(part); }
  __device__ int chunks() const {
    return (end - part) * p->part_chunks + max(0, min(end, p->parts_more) - min(part, p->parts_more));
  }
  __device__ void next() {
    if (++pass == count()) pass = 0, ++part;
  }
  // Before the chunk; behind the last one what comes is zeros.
  __device__ int element() const {
    return part < end ? part * kPartLen + pass * kPassLen : (p->part_chunks + 1) * kPassLen;
  }
};

// Where a block is in its work: a tile, and a stage of the block's part of `in`.
template <class S>
struct Work {
  const Params& p;
  int rank, steps, first_chunk, tile, step = 0;
  bool first = true;
  PartWalk walk;
  __device__ explicit Work(const Params& params)
      : p(params),
        rank(block_of_cluster(p)),
        steps((p.pieces + (rank < p.pieces_more ? 1 : 0)) * (kPieceChunks / S::kChunks)),
        first_chunk((p.pieces * rank + min(rank, p.pieces_more)) * kPieceChunks),
        tile(cluster_of_block(p)),
        walk(p, rank) {
    if constexpr (S::kParts) steps = (walk.chunks() + S::kChunks - 1) / S::kChunks;
  }
  __device__ bool inside() const { return tile < p.tiles; }
  __device__ void next_tile() { tile += num_clusters(p), first = false; }
  __device__ void next() {
    if constexpr (S::kParts) {
      for (int c = 0; c < S::kChunks; ++c) walk.next();
    }
    if (++step < steps) return;
    step = 0, walk = PartWalk(p, rank);
    next_tile();
  }
  // Elements of `in` before one of the chunks of this stage.
  __device__ int element(int chunk) const {
    if constexpr (S::kParts) {
      PartWalk at = walk;
      if (chunk > 0) at.next();
      return at.element();
    }
    return (first_chunk + step * S::kChunks + chunk) * NarrowPlan::kChunk;
  }
};

struct Place {
  int stages, stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

template <class S>
struct Shared {
  uint32_t memory;
  int num_stages, join_bytes;
  __device__ uint32_t stage(int i) const { return memory + i * S::kStageBytes; }
  __device__ uint32_t x(int i) const { return stage(i) + S::kWeightBytes; }
  __device__ uint32_t join() const { return stage(num_stages); }
  __device__ uint32_t full(int i) const { return join() + join_bytes + i * 16; }
  __device__ uint32_t empty(int i) const { return full(i) + 8; }
  __device__ uint32_t sent() const { return full(num_stages); }
  __device__ uint32_t taken() const { return sent() + 8; }
};

}  // namespace headrace::cuda::narrow
