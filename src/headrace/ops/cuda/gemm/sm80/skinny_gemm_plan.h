// Shared memory of the skinny GEMM kernels (skinny_gemm.cuh), and which problems fit a device. Pure: shapes in, bytes
// out.
#pragma once
#include <algorithm>
#include <cstdint>

namespace headrace::cuda {

struct SkinnyGemmShape {
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

}  // namespace headrace::cuda
