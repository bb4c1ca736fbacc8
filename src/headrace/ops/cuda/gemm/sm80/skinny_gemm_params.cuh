// Parameters of the skinny GEMM and GEMV kernels, and how their warps load weights.
#pragma once
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/gemm_common.cuh"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm_plan.h"

namespace headrace::cuda::skinny {

inline constexpr int kThreads = kWarps * 32;

// Selects the 16 elements of K that one MMA takes. kPieces: four lanes load 16 bytes of a row each, half of which feeds
// one MMA and half the next. kNeighbours: the order of gemm_common.cuh, for batch-invariant mode. It costs an exchange
// between lanes: some tenths of a microsecond, where a skinny GEMM takes 4 to 7.
enum class Order : uint8_t { kPieces, kNeighbours };
// Chains of MMAs of a warp for each weight: one, or in batch-invariant mode one for each of its K splits.
template <Order kOrder>
constexpr int kChainsOfWarp = kOrder == Order::kPieces ? 1 : kWarpLen / kPartLen;

struct Weight {
  const char* data;
  int64_t row_bytes;
  int out, end_tile;  // end_tile: tiles of this weight and all before it
  Result result;
};

struct Params {
  Rows x;
  const void* norm_weight;
  DType norm_type;
  float eps, weight_offset;
  bool norm_in_pieces;  // the norm weight has x's dtype and is aligned
  Weight weights[FusedLinearArgs::kMaxProducts];
  int num_weights, rows, in, tiles, passes;
};

// The weight that a tile belongs to, and the tile's first row there.
struct Place {
  int weight, row0;
};
__device__ inline Place place_of(const Params& p, int tile) {
  int w = 0, before = 0;
  while (tile >= p.weights[w].end_tile) before = p.weights[w++].end_tile;
  return {w, (tile - before) * kTileRows};
}

// Loads a warp's part of one tile and pass, 16 bytes at a time, four lanes a row. Zeros past the end of K.
__device__ inline void load_pieces(const Params& p, const Weight& weight, int row0, int first_k,
                                   uint4 (&pieces)[kChunks]) {
  const int lane = threadIdx.x % 32, row = min(row0 + lane / 4, weight.out - 1), k = first_k + lane % 4 * 8;
  const char* from = weight.data + row * weight.row_bytes + int64_t{k} * 2;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    pieces[c] = k + c * kChunkLen < p.in ? load_streaming(from + c * kChunkLen * 2) : uint4{};
  }
}

}  // namespace headrace::cuda::skinny
