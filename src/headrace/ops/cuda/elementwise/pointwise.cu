#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/elementwise/gate.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 256;

struct Params {
  Rows x, y, out;
  int64_t rows, dim, x_dim;
};

// For a result that is rounded to 16 bits or not.
template <PointwiseKind kKind>
__device__ float combine(bool to_16_bit, float x, float y) {
  switch (kKind) {
    case PointwiseKind::kAdd: return x + y;
    case PointwiseKind::kSiluMul: return (to_16_bit ? quick_silu(x) : silu(x)) * y;
    case PointwiseKind::kSigmoidMul: return to_16_bit ? gated<__half>(x, y) : gated<float>(x, y);
    case PointwiseKind::kMul: return x * y;
    case PointwiseKind::kGeluMul: return gelu(x) * y;
    case PointwiseKind::kSoftCap: return x * tanhf(y / x);
    case PointwiseKind::kDivide: return y / x;
  }
  return 0;
}

// One kernel per kind. A single kernel would hold the code of all kinds, unrolled eight times, which a step fetches
// cold from memory. ElementAccess also takes an x of one column, and more elements than 32 bits count.
template <class Access, PointwiseKind kKind>
__global__ void __launch_bounds__(kThreads) combine_rows(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  using Index = std::conditional_t<Access::kWidth == 1, uint64_t, uint32_t>;
  const auto vecs = static_cast<Index>(p.dim / Access::kWidth), at = Index{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= p.rows * vecs) return;
  const Index token = at / vecs, d = (at - token * vecs) * Access::kWidth;
  const auto x = Access::load(p.x, token, 0, Access::kWidth == 1 && p.x_dim == 1 ? 0 : d);
  auto y = Access::load(p.y, token, 0, d);
#pragma unroll
  for (int i = 0; i < Access::kWidth; ++i) y.v[i] = combine<kKind>(Access::is_16_bit(p.out), x.v[i], y.v[i]);
  Access::store(y, p.out, token, 0, d);
}

template <class Access>
auto kernel_of(PointwiseKind kind) -> void (*)(Params) {
  switch (kind) {
    case PointwiseKind::kAdd: return combine_rows<Access, PointwiseKind::kAdd>;
    case PointwiseKind::kSiluMul: return combine_rows<Access, PointwiseKind::kSiluMul>;
    case PointwiseKind::kSigmoidMul: return combine_rows<Access, PointwiseKind::kSigmoidMul>;
    case PointwiseKind::kMul: return combine_rows<Access, PointwiseKind::kMul>;
    case PointwiseKind::kGeluMul: return combine_rows<Access, PointwiseKind::kGeluMul>;
    case PointwiseKind::kSoftCap: return combine_rows<Access, PointwiseKind::kSoftCap>;
    case PointwiseKind::kDivide: return combine_rows<Access, PointwiseKind::kDivide>;
  }
  throw Error(ErrorCode::kInternal, "pointwise: a kind without a kernel");
}

}  // namespace

void pointwise(const PointwiseArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const Params p{
      .x = Rows(a.x), .y = Rows(a.y), .out = Rows(a.out), .rows = a.y.dim(0), .dim = a.y.dim(1), .x_dim = a.x.dim(1)};
  const DType type = a.out.dtype();
  const bool packed = p.x_dim == p.dim && a.x.dtype() == type && a.y.dtype() == type && is_vec8(a.x) && is_vec8(a.y) &&
                      is_vec8(a.out) && a.out.numel() / kVec8 < int64_t{1} << 31;
  for_access(packed, type, [&]<class Access>(Access) {
    const int64_t blocks = (p.rows * p.dim / Access::kWidth + kThreads - 1) / kThreads;
    launch_pdl(stream, kernel_of<Access>(a.kind), dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, p,
               "pointwise");
  });
}

}  // namespace headrace::cuda
