// Which problems the skinny GEMM (skinny_gemm.cuh) and the register-resident GEMV (gemv.cuh) can run on a device. Pure:
// shapes in, sizes out.
#pragma once
#include <algorithm>
#include <cstdint>

#include "headrace/ops/cuda/gemm/fixed_splits.h"

namespace headrace::cuda {

struct SkinnyGemmShape {
  static constexpr int64_t kMostRows = 16;  // largest M: up to here the weights' bytes bound a GEMM
  int64_t rows, in;
  bool normed, combined;
  bool strict;  // batch-invariant mode: two chains of MMAs for each weight and warp

  static constexpr int kWarps = 8, kTileRows = 8, kBuffers = 2;  // kBuffers: of a tile's sums
  // Padding elements of a row of x, against bank conflicts between 16-byte reads of two rows, or 8-byte reads of four.
  constexpr int64_t pad() const { return strict ? 16 : 32; }
  // Dynamic shared memory: rows of x, then the norm's factors as float32.
  constexpr int64_t rows_bytes() const { return rows * (in + pad()) * 2 + (normed ? in * 4 : 0); }
  // Static shared memory: the partial sums of all warps for one tile.
  constexpr int64_t parts_bytes() const {
    return int64_t{kWarps} * (strict ? 2 : 1) * (combined ? 2 : 1) * (rows > 8 ? 16 : 8) * kTileRows * 4;
  }
  constexpr bool fits(int64_t bytes_of_block) const {
    return rows_bytes() + kBuffers * parts_bytes() <= bytes_of_block;
  }
  // Returns the CTAs that fit in an SM's shared memory, at least 1. Each buffers the sums of `tiles` tiles and takes 1
  // KiB more.
  constexpr int blocks(int64_t bytes_of_sm, int tiles) const {
    return static_cast<int>(std::max<int64_t>(1, bytes_of_sm / (rows_bytes() + tiles * parts_bytes() + 1024)));
  }
};

namespace skinny {

inline constexpr int kWarps = SkinnyGemmShape::kWarps, kWarpLen = kPassLen / kWarps,
                     kChunks = kWarpLen / kChunkLen;  // per warp and pass
inline constexpr int kTileRows = SkinnyGemmShape::kTileRows;
// Largest M of the GEMV kernels. From M = 3 on small_m_gemm.cuh is as fast or faster.
constexpr int kMostGemvRows = 2;
// Passes of the kernels that request all weights of a CTA at once.
constexpr int kPassesAtOnce[] = {1, 2, 4};
// Tiles of a CTA that share one copy of x, where their weights fit in registers. Such CTAs are few and all resident.
constexpr int tiles_at_once(bool combined, int passes) { return combined || passes > 1 ? 1 : 2; }
// CTAs that fit on an SM when each keeps all weights of its tiles in registers.
constexpr int blocks_at_once(bool combined, int passes, int tiles) {
  const int pieces = (combined ? 2 : 1) * passes * tiles * kChunks;
  return pieces <= 8 ? 4 : pieces <= 16 ? 2 : 1;
}
constexpr int64_t tiles_of(int64_t n) { return (n + kTileRows - 1) / kTileRows; }

// Returns the passes of the GEMV that holds all weights of `tiles` tiles in registers at once; 0 if none does.
constexpr int gemv_passes(int64_t k, int64_t tiles, bool combined, int num_sms) {
  for (const int passes : kPassesAtOnce) {
    const int of_block = tiles_at_once(combined, passes);
    const int64_t blocks = (tiles + of_block - 1) / of_block;
    const int64_t resident = int64_t{num_sms} * blocks_at_once(combined, passes, of_block);
    if (k <= int64_t{passes} * kPassLen && blocks <= resident) return passes;
  }
  return 0;
}

}  // namespace skinny
}  // namespace headrace::cuda
