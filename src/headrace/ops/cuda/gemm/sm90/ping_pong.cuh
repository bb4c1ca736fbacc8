// What Hopper's kernels of many rows' products share: the order in which blocks take tiles, and two warpgroups that
// multiply in turns, so that one folds or writes results meanwhile.
#pragma once
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/arch/wgmma.cuh"

namespace headrace::cuda {

struct GemmTile {
  int row, column;  // of row tiles and column tiles
};
// Strip by strip: the rows of a strip meet one tile of the weights after another.
__device__ inline GemmTile gemm_tile(int row_tiles, int column_tiles, int t) {
  constexpr int kStripTiles = 16;  // row tiles that blocks stay with while they walk over the weights
  const int of_strip = kStripTiles * column_tiles, first = t / of_strip * kStripTiles;
  const int rows = min(kStripTiles, row_tiles - first), in_strip = t % of_strip;
  return {first + in_strip % rows, in_strip / rows};
}

struct PingPong {
  static constexpr int kGroups = 2, kThreads = kGroups * 128;
  int group, warp, lane;

  // Barrier 1 lets the first group multiply, barrier 2 the second.
  __device__ void take_turn() const { group == 0 ? named_barrier<1, kThreads>() : named_barrier<2, kThreads>(); }
  __device__ void pass_turn() const {
    group == 0 ? named_barrier_arrive<2, kThreads>() : named_barrier_arrive<1, kThreads>();
  }
  __device__ static uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }
  __device__ void release(uint32_t empty) const {
    if (lane == 0) barrier_arrive(empty);
  }
};

}  // namespace headrace::cuda
