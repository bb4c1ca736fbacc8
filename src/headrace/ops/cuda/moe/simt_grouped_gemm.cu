// SIMT grouped GEMM with float32 FMA: a CTA computes 16 rows of 32 columns, a thread four rows of one column.
#include "headrace/ops/cuda/moe/grouped_gemm.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128, kRows = 16, kColumns = 32, kDepth = 32, kPer = 4;

template <bool kGated>
__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ GroupedGemm p) {
  constexpr int kWeights = kGated ? 2 : 1;
  __shared__ float x[kRows][kDepth], w[kWeights][kColumns][kDepth + 1];
  const ExpertTile tile = p.groups.tile(static_cast<int32_t>(blockIdx.y));
  const int column0 = blockIdx.x * kColumns, row0 = threadIdx.x / 32 * kPer, column = threadIdx.x % 32;
  if (tile.count == 0) return;
  float sums[kWeights][kPer] = {};
  for (int k0 = 0; k0 < p.in; k0 += kDepth) {
    for (int i = threadIdx.x; i < kRows * kDepth; i += kThreads) {
      const int row = i / kDepth, k = k0 + i % kDepth, place = tile.begin + row;
      const bool inside = row < tile.count && k < p.in;
      x[row][i % kDepth] = inside ? p.x.get(p.k == 0 ? place : p.groups.slot_at(place) / p.k, 0, k) : 0.0f;
    }
    for (int i = threadIdx.x; i < kWeights * kColumns * kDepth; i += kThreads) {
      const int of = i / (kColumns * kDepth), c = i / kDepth % kColumns, k = k0 + i % kDepth;
      const auto* from = reinterpret_cast<const void*>(p.addresses[tile.expert * 3 + (kGated ? of : 2)]);
      const bool inside = column0 + c < p.out && k < p.in;
      w[of][c][i % kDepth] = inside ? load(from, p.weight_type, int64_t{column0 + c} * p.in + k) : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int of = 0; of < kWeights; ++of) sums[of][i] = fmaf(x[row0 + i][k], w[of][column][k], sums[of][i]);
      }
    }
    __syncthreads();
  }
  if (column0 + column >= p.out) return;
  for (int i = 0; i < kPer && row0 + i < tile.count; ++i) {
    const int place = tile.begin + row0 + i;
    float value = sums[0][i];
    if constexpr (kGated) value = activated(p.activation, value) * sums[1][i];
    p.y.set(kGated ? place : p.groups.slot_at(place), 0, column0 + column, value);
  }
}

}  // namespace

void simt_grouped_gemm(const GroupedGemm& p, const Stream& stream) {
  const dim3 grid(static_cast<unsigned>((p.out + kColumns - 1) / kColumns),
                  static_cast<unsigned>(p.groups.most_tiles()));
  if (p.projection == GroupedGemm::Projection::kGateUp) {
    multiply<true><<<grid, kThreads, 0, stream.handle>>>(p);
  } else {
    multiply<false><<<grid, kThreads, 0, stream.handle>>>(p);
  }
  check_launch("expert_mlp");
}

}  // namespace headrace::cuda
