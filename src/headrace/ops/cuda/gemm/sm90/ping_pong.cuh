// Shared by the sm_90 GEMMs of large M: the order in which CTAs take tiles, and ping-pong warpgroups. Two warpgroups
// alternate on the tensor cores, so that one adds up or writes results while the other multiplies.
#pragma once
#include "headrace/ops/cuda/arch/tma.cuh"
#include "headrace/ops/cuda/arch/wgmma.cuh"

namespace headrace::cuda {

struct GemmTile {
  int row, column;  // indices of a row tile and a column tile
};
// Tile t in rasterisation order, strip by strip: all row tiles of a strip use one weight tile before the next.
__device__ inline GemmTile gemm_tile(int row_tiles, int column_tiles, int t) {
  constexpr int kStripTiles = 16;  // row tiles that CTAs stay with while they walk over the weights
  const int of_strip = kStripTiles * column_tiles, first = t / of_strip * kStripTiles;
  const int rows = min(kStripTiles, row_tiles - first), in_strip = t % of_strip;
  return {first + in_strip % rows, in_strip / rows};
}

struct PingPong {
  static constexpr int kGroups = 2, kThreads = kGroups * 128;
  int group, warp, lane;

  // Named barrier 1 lets warpgroup 0 multiply, barrier 2 warpgroup 1.
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
