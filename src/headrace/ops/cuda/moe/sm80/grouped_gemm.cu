// Grouped GEMM by mma.sync: a warp computes 16 rows of 8 columns, or 64 of 16. Four lanes hold 16 bytes each of a row,
// the part of it that a pair of m16n8k16 MMAs takes (multiply_chunk in gemm_common.cuh). A sum is one chain in
// ascending k whatever the tile, so a row's bits depend on that row alone.
#include "headrace/ops/cuda/gemm/gemm_common.cuh"
#include "headrace/ops/cuda/moe/grouped_gemm.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * 32;

template <class T, int kHigh, int kWide, int kWeights>
struct Sums {
  float v[kWeights][kHigh][kWide][4] = {};
};

// Returns 16 bytes of a row; zeros past its end and for a null row.
__device__ inline uint4 piece_of(const char* row, int k, int in) {
  return row != nullptr && k < in ? __ldg(reinterpret_cast<const uint4*>(row + int64_t{k} * 2)) : uint4{};
}

template <class T, int kHigh, int kWide, bool kGated>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ GroupedGemm p) {
  constexpr int kWeights = kGated ? 2 : 1;
  const ExpertTile tile = p.groups.tile(static_cast<int32_t>(blockIdx.y));
  if (tile.count == 0) return;
  const int lane = threadIdx.x % 32, column0 = (blockIdx.x * kWarps + threadIdx.x / 32) * kWide * 8;
  if (column0 >= p.out) return;
  const char* x[kHigh * 2];
#pragma unroll
  for (int i = 0; i < kHigh * 2; ++i) {
    const int row = i * 8 + lane / 4;
    const int place = tile.begin + row;
    x[i] = row >= tile.count
               ? nullptr
               : static_cast<const char*>(p.x.data) + p.x.at(p.k == 0 ? place : p.groups.slot_at(place) / p.k) * 2;
  }
  const char* weights[kWeights][kWide];
#pragma unroll
  for (int w = 0; w < kWeights; ++w) {
    const auto* base = reinterpret_cast<const char*>(p.addresses[tile.expert * 3 + (kGated ? w : 2)]);
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      const int column = column0 + j * 8 + lane / 4;
      weights[w][j] = column < p.out ? base + int64_t{column} * p.in * 2 : nullptr;
    }
  }
  Sums<T, kHigh, kWide, kWeights> sums;
  constexpr int kUnroll = kHigh == 1 ? 4 : 1;
#pragma unroll kUnroll
  for (int k0 = 0; k0 < p.in; k0 += kChunkLen) {
    const int k = k0 + lane % 4 * 8;
    uint4 pieces[kWeights][kWide];
#pragma unroll
    for (int w = 0; w < kWeights; ++w) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) pieces[w][j] = piece_of(weights[w][j], k, p.in);
    }
#pragma unroll
    for (int i = 0; i < kHigh; ++i) {
      const uint4 low = piece_of(x[2 * i], k, p.in), high = piece_of(x[2 * i + 1], k, p.in);
#pragma unroll
      for (int w = 0; w < kWeights; ++w) {
#pragma unroll
        for (int j = 0; j < kWide; ++j) multiply_chunk<T>(sums.v[w][i][j], low, high, pieces[w][j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHigh; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = i * 16 + lane / 4 + e / 2 * 8;
      if (row >= tile.count) continue;
      const int64_t to = kGated ? tile.begin + row : p.groups.slot_at(tile.begin + row);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        const int column = column0 + j * 8 + lane % 4 * 2 + e % 2;
        if (column >= p.out) continue;
        float value = sums.v[0][i][j][e];
        if constexpr (kGated) value = activated(p.activation, value) * sums.v[1][i][j][e];
        p.y.set(to, 0, column, value);
      }
    }
  }
}

template <class T, int kHigh, int kWide>
void launch(const GroupedGemm& p, const Stream& stream) {
  constexpr int kColumns = kWarps * kWide * 8;
  const dim3 grid(static_cast<unsigned>((p.out + kColumns - 1) / kColumns),
                  static_cast<unsigned>(p.groups.most_tiles()));
  if (p.projection == GroupedGemm::Projection::kGateUp) {
    multiply<T, kHigh, kWide, true><<<grid, kThreads, 0, stream.handle>>>(p);
  } else {
    multiply<T, kHigh, kWide, false><<<grid, kThreads, 0, stream.handle>>>(p);
  }
  check_launch("expert_mlp");
}

template <class T>
void launch_for(const GroupedGemm& p, const Stream& stream) {
  p.groups.tile_rows == kFewTileRows ? launch<T, 1, 1>(p, stream) : launch<T, 4, 2>(p, stream);
}

}  // namespace

bool grouped_supports(const GroupedGemm& p) {
  return p.x.type != DType::kF32 && p.weight_type == p.x.type && p.in % 8 == 0 && p.x.token_stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0;
}

void grouped_gemm(const GroupedGemm& p, const Stream& stream) {
  p.x.type == DType::kBF16 ? launch_for<__nv_bfloat16>(p, stream) : launch_for<__half>(p, stream);
}

}  // namespace headrace::cuda
