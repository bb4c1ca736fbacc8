#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

__device__ float combine(PointwiseKind kind, float x, float y) {
  switch (kind) {
    case PointwiseKind::kAdd: return x + y;
    case PointwiseKind::kSiluMul: return silu(x) * y;
    case PointwiseKind::kSigmoidMul: return sigmoid(x) * y;
    case PointwiseKind::kMul: return x * y;
    case PointwiseKind::kGeluMul: return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))) * y;
    case PointwiseKind::kSoftCap: return x * tanhf(y / x);
  }
  return 0;
}

__global__ void combine_rows(PointwiseKind kind, Rows x, Rows y, Rows out, int64_t dim, int64_t x_dim) {
  const int64_t token = blockIdx.x;
  for (int64_t d = blockIdx.y * blockDim.x + threadIdx.x; d < dim; d += int64_t{gridDim.y} * blockDim.x) {
    out.set(token, 0, d, combine(kind, x.get(token, 0, x_dim == 1 ? 0 : d), y.get(token, 0, d)));
  }
}

}  // namespace

void pointwise(const PointwiseArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const int64_t dim = a.y.dim(1);
  const dim3 grid(static_cast<unsigned>(a.y.dim(0)), static_cast<unsigned>(dim > 2048 ? 4 : 1));
  combine_rows<<<grid, 256, 0, stream_of(context).handle>>>(a.kind, Rows(a.x), Rows(a.y), Rows(a.out), dim, a.x.dim(1));
  check_launch("pointwise");
}

}  // namespace headrace::cuda
