#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

struct Params {
  Rows table, out;
  const int32_t* ids;
  int64_t dim;
};

// First kernel of a step. It allows the next kernel to start only after all earlier work has ended, so later kernels
// may read early what previous steps wrote (DeviceMetadata).
template <class Access>
__global__ void __launch_bounds__(kThreads) gather(const __grid_constant__ Params p) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t token = blockIdx.x, id = p.ids[token];
  for (int64_t d = threadIdx.x * Access::kWidth; d < p.dim; d += kThreads * Access::kWidth) {
    Access::store(Access::load(p.table, id, 0, d), p.out, token, 0, d);
  }
}

}  // namespace

void embedding(const EmbeddingArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const Params p{.table = Rows(a.table),
                 .out = Rows(a.out),
                 .ids = static_cast<const int32_t*>(a.ids.data()),
                 .dim = a.out.dim(1)};
  const dim3 grid(static_cast<unsigned>(a.out.dim(0)));
  const bool packed = a.table.dtype() == a.out.dtype() && is_vec8(a.table) && is_vec8(a.out);
  for_access(packed, a.out.dtype(), [&]<class Access>(Access) {
    launch_pdl(stream, gather<Access>, grid, dim3(kThreads), 0, p, "embedding");
  });
}

}  // namespace headrace::cuda
