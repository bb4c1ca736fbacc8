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
__global__ void __launch_bounds__(kThreads) gather_rows(const __grid_constant__ Params p) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t token = blockIdx.x, id = p.ids[token];
  for (int64_t d = threadIdx.x; d < p.dim; d += kThreads) p.out.set(token, 0, d, p.table.get(id, 0, d));
}

template <class T>
__global__ void __launch_bounds__(kThreads) gather_pieces(const __grid_constant__ Params p) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t token = blockIdx.x, id = p.ids[token];
  for (int64_t d = threadIdx.x * kVec8; d < p.dim; d += kThreads * kVec8) {
    Vec8<T>::load(row_of<T>(p.table, id) + d).store(row_of<T>(p.out, token) + d);
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
  if (a.table.dtype() != a.out.dtype() || !is_vec8(a.table) || !is_vec8(a.out)) {
    return launch_pdl(stream, gather_rows, grid, dim3(kThreads), 0, p, "embedding");
  }
  for_type(a.out.dtype(),
           [&]<class T>(T) { launch_pdl(stream, gather_pieces<T>, grid, dim3(kThreads), 0, p, "embedding"); });
}

}  // namespace headrace::cuda
