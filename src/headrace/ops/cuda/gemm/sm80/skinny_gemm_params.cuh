// What the kernels of skinny_gemm.cuh and gemv.cuh are told, and how their warps read weights.
#pragma once
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/gemm_common.cuh"
#include "headrace/ops/cuda/gemm/sm80/skinny_gemm_plan.h"

namespace headrace::cuda::skinny {

inline constexpr int kWarps = SkinnyGemmShape::kWarps, kWarpLen = kPassLen / kWarps,
                     kChunks = kWarpLen / kChunkLen;  // of a pass
inline constexpr int kThreads = kWarps * 32, kTileRows = SkinnyGemmShape::kTileRows;

// Which 16 elements of `in` one product takes. kPieces: four lanes load 16 bytes of a row each, half of which feeds one
// product and half the next. kNeighbours is the order of gemm_common.cuh, which strict mode has: it costs an
// exchange between lanes, some tenths of a microsecond where a kernel of few rows takes 4 to 7.
enum class Order : uint8_t { kPieces, kNeighbours };
// A warp's sums are one chain of products for each weight, and in strict mode for each part of the sum.
template <Order kOrder>
constexpr int kChainsOfWarp = kOrder == Order::kPieces ? 1 : kWarpLen / kPartLen;

struct Weight {
  const char* data;
  int64_t row_bytes;
  int out, end_tile;  // tiles of this and all products before it
  Result result;
};

struct Params {
  Rows x;
  const void* norm_weight;
  DType norm_type;
  float eps, weight_offset;
  bool norm_in_pieces;  // its weight has x's type and is aligned
  Weight weights[FusedLinearArgs::kMaxProducts];
  int num_weights, rows, in, tiles, passes;
};

// Which weight a tile belongs to, and its first row there.
struct Place {
  int weight, row0;
};
__device__ inline Place place_of(const Params& p, int tile) {
  int w = 0, before = 0;
  while (tile >= p.weights[w].end_tile) before = p.weights[w++].end_tile;
  return {w, (tile - before) * kTileRows};
}

// A warp's 16-byte pieces of one tile and pass: four of a row at once, zeros past the end of `in`.
__device__ inline void load_pieces(const Params& p, const Weight& weight, int row0, int first_k,
                                   uint4 (&pieces)[kChunks]) {
  const int lane = threadIdx.x % 32, row = min(row0 + lane / 4, weight.out - 1), k = first_k + lane % 4 * 8;
  const char* from = weight.data + row * weight.row_bytes + int64_t{k} * 2;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    pieces[c] = k + c * kChunkLen < p.in ? load_streaming(from + c * kChunkLen * 2) : uint4{};
  }
}

// Of the kernels of gemv.cuh; with three and more those of small_m_gemm.cuh are as fast, or faster.
constexpr int kMostGemvRows = 2;
// Passes of the kernels that ask for all weights of a block at once.
constexpr int kPassesAtOnce[] = {1, 2, 4};
// Tiles that share one copy of x where their weights fit: blocks are few, and all run at once.
constexpr int tiles_at_once(bool combined, int passes) { return combined || passes > 1 ? 1 : 2; }
// Blocks of one multiprocessor that hold all weights of their tiles in registers.
constexpr int blocks_at_once(bool combined, int passes, int tiles) {
  const int pieces = (combined ? 2 : 1) * passes * tiles * kChunks;
  return pieces <= 8 ? 4 : pieces <= 16 ? 2 : 1;
}

}  // namespace headrace::cuda::skinny
