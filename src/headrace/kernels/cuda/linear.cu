// y = x W^T + bias. The tiled kernel sums over `in` in one fixed order for every shape, so a row's bits do not depend
// on the others.
#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

constexpr int kTile = 64, kDepth = 16, kThreads = 256, kPer = 4;  // each thread makes kPer x kPer outputs

struct Params {
  Rows x, weight, y;
  const void* bias;
  DType bias_type;
  int64_t rows, out, in;
};

__global__ void __launch_bounds__(kThreads) multiply(Params p) {
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
      if (r >= p.rows || o >= p.out) continue;
      p.y.set(r, 0, o, sum[i][j] + (p.bias != nullptr ? load(p.bias, p.bias_type, o) : 0.0f));
    }
  }
}

}  // namespace

void linear(const LinearArgs& a, const OpContext& context) {
  check(a);
  if (a.y.numel() == 0) return;
  const Params params{.x = Rows(a.x),
                      .weight = Rows(a.weight),
                      .y = Rows(a.y),
                      .bias = a.bias.data(),
                      .bias_type = a.bias.dtype(),
                      .rows = a.x.dim(0),
                      .out = a.weight.dim(0),
                      .in = a.x.dim(1)};
  const dim3 grid(static_cast<unsigned>((params.out + kTile - 1) / kTile),
                  static_cast<unsigned>((params.rows + kTile - 1) / kTile));
  multiply<<<grid, kThreads, 0, stream_of(context).handle>>>(params);
  check_launch("linear");
}

}  // namespace headrace::cuda
