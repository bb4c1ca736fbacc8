#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/elementwise/gate.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  PointwiseKind kind;
  Rows x, y, out;
  int64_t rows, dim, x_dim;
};

template <class T>
__device__ float combine(PointwiseKind kind, float x, float y) {
  switch (kind) {
    case PointwiseKind::kAdd: return x + y;
    case PointwiseKind::kSiluMul: return silu_of<T>(x) * y;
    case PointwiseKind::kSigmoidMul: return gated<T>(x, y);
    case PointwiseKind::kMul: return x * y;
    case PointwiseKind::kGeluMul: return gelu(x) * y;
    case PointwiseKind::kSoftCap: return x * tanhf(y / x);
    case PointwiseKind::kDivide: return y / x;
  }
  return 0;
}

__global__ void __launch_bounds__(kThreads) combine_rows(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t token = blockIdx.x;
  for (int64_t d = blockIdx.y * kThreads + threadIdx.x; d < p.dim; d += int64_t{gridDim.y} * kThreads) {
    const float x = p.x.get(token, 0, p.x_dim == 1 ? 0 : d), y = p.y.get(token, 0, d);
    const bool rounded = p.out.type != DType::kF32;
    p.out.set(token, 0, d, rounded ? combine<__half>(p.kind, x, y) : combine<float>(p.kind, x, y));
  }
}

// One kernel per kind. A single kernel would hold the code of all kinds, unrolled eight times, which a step fetches
// cold from memory.
template <class T, PointwiseKind kKind>
__global__ void __launch_bounds__(kThreads) combine_pieces(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const auto pieces = static_cast<uint32_t>(p.dim / kVec8), at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= p.rows * pieces) return;
  const uint32_t token = at / pieces, d = (at - token * pieces) * kVec8;
  const Vec8<T> x = Vec8<T>::load(row_of<T>(p.x, token) + d);
  Vec8<T> y = Vec8<T>::load(row_of<T>(p.y, token) + d);
#pragma unroll
  for (int i = 0; i < kVec8; ++i) y.v[i] = combine<T>(kKind, x.v[i], y.v[i]);
  y.store(row_of<T>(p.out, token) + d);
}

// Returns the Vec8 kernel of a kind.
template <class T>
auto pieces_kernel(PointwiseKind kind) -> void (*)(Params) {
  switch (kind) {
    case PointwiseKind::kAdd: return combine_pieces<T, PointwiseKind::kAdd>;
    case PointwiseKind::kSiluMul: return combine_pieces<T, PointwiseKind::kSiluMul>;
    case PointwiseKind::kSigmoidMul: return combine_pieces<T, PointwiseKind::kSigmoidMul>;
    case PointwiseKind::kMul: return combine_pieces<T, PointwiseKind::kMul>;
    case PointwiseKind::kGeluMul: return combine_pieces<T, PointwiseKind::kGeluMul>;
    case PointwiseKind::kSoftCap: return combine_pieces<T, PointwiseKind::kSoftCap>;
    case PointwiseKind::kDivide: return combine_pieces<T, PointwiseKind::kDivide>;
  }
  throw Error(ErrorCode::kInternal, "pointwise: a kind without a kernel");
}

}  // namespace

void pointwise(const PointwiseArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const Params p{.kind = a.kind,
                 .x = Rows(a.x),
                 .y = Rows(a.y),
                 .out = Rows(a.out),
                 .rows = a.y.dim(0),
                 .dim = a.y.dim(1),
                 .x_dim = a.x.dim(1)};
  const DType type = a.out.dtype();
  const bool pieces = p.x_dim == p.dim && a.x.dtype() == type && a.y.dtype() == type && is_vec8(a.x) && is_vec8(a.y) &&
                      is_vec8(a.out) && a.out.numel() / kVec8 < int64_t{1} << 31;
  if (!pieces) {
    const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.dim > 2048 ? 4 : 1));
    return launch_pdl(stream, combine_rows, grid, dim3(kThreads), 0, p, "pointwise");
  }
  const int64_t blocks = (p.rows * p.dim / kVec8 + kThreads - 1) / kThreads;
  for_type(type, [&]<class T>(T) {
    launch_pdl(stream, pieces_kernel<T>(a.kind), dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, p,
               "pointwise");
  });
}

}  // namespace headrace::cuda
