// SIMT GEMM for any dtypes, with float32 FMA. Adds over K sequentially, so a row's bits depend on that row alone.
#include "headrace/ops/cuda/gemm/gemm.h"
#include "headrace/ops/cuda/gemm/gemm_common.cuh"

namespace headrace::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kPer = 4;  // each thread computes kPer x kPer results

struct Params {
  Rows x, weight;
  Result result;
  int64_t rows, out, in;
};

__global__ void __launch_bounds__(kThreads) multiply(const __grid_constant__ Params p) {
  __shared__ float x[kDepth][kTile + 4], w[kDepth][kTile + 4];
  const int64_t row0 = int64_t{blockIdx.y} * kTile, out0 = int64_t{blockIdx.x} * kTile;
  const int tr = threadIdx.x / 16 * kPer, tc = threadIdx.x % 16 * kPer;
  float sum[kPer][kPer] = {};
  for (int64_t k0 = 0; k0 < p.in; k0 += kDepth) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int r = i / kDepth, k = i % kDepth;
      const bool inside = k0 + k < p.in;
      x[k][r] = inside && row0 + r < p.rows ? p.x.get(row0 + r, 0, k0 + k) : 0.0f;
      w[k][r] = inside && out0 + r < p.out ? p.weight.get(out0 + r, 0, k0 + k) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
#pragma unroll
        for (int j = 0; j < kPer; ++j) sum[i][j] = fmaf(x[k][tr + i], w[k][tc + j], sum[i][j]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kPer; ++i) {
    for (int j = 0; j < kPer; ++j) {
      const int64_t r = row0 + tr + i, o = out0 + tc + j;
      if (r < p.rows && o < p.out) p.result.write(r, o, sum[i][j]);
    }
  }
}

}  // namespace

void simt_gemm(const FusedLinearArgs& a, const Stream& stream) {
  const FusedLinearArgs::Product& product = a.products[0];
  const Params p{.x = Rows(a.x),
                 .weight = Rows(product.weight),
                 .result = {.y = Rows(product.y),
                            .residual = Rows(a.residual),
                            .bias = product.bias.data(),
                            .bias_type = product.bias.dtype()},
                 .rows = a.x.dim(0),
                 .out = product.weight.dim(0),
                 .in = a.x.dim(1)};
  const dim3 grid(static_cast<unsigned>((p.out + kTile - 1) / kTile),
                  static_cast<unsigned>((p.rows + kTile - 1) / kTile));
  multiply<<<grid, kThreads, 0, stream.handle>>>(p);
  check_launch("simt_gemm");
}

}  // namespace headrace::cuda
