// Maps a CTA to a request and a tile. Computed on the device from the key spans, so that a captured graph serves any
// lengths.
#pragma once
#include "headrace/batch/key_span.h"

namespace headrace::cuda {

struct TilePlace {
  int request = -1;  // -1: this CTA has no work
  int tile = 0;      // index in the request
};

// Finds tile number `wanted` in the batch. A request has q_len * rows_per_token rows in tiles of `tile_rows`. Whole
// warps call it; every lane gets the answer.
__device__ inline TilePlace locate_tile(const KeySpan* spans, int requests, int tile_rows, int wanted,
                                        int rows_per_token = 1) {
  const int lane = threadIdx.x % 32;
  for (int base = 0, before = 0; base < requests; base += 32) {
    const int r = base + lane;
    const int mine = r < requests ? (spans[r].q_len * rows_per_token + tile_rows - 1) / tile_rows : 0;
    int upto = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, upto, step);
      if (lane >= step) upto += other;
    }
    const unsigned reached = __ballot_sync(0xffffffffu, before + upto > wanted);
    if (reached != 0) {
      const int first = __ffs(static_cast<int>(reached)) - 1;
      const int start = before + __shfl_sync(0xffffffffu, upto - mine, first);
      return {base + first, wanted - start};
    }
    before += __shfl_sync(0xffffffffu, upto, 31);
  }
  return {};
}

}  // namespace headrace::cuda
