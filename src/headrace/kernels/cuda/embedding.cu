#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

__global__ void gather_rows(Rows table, const int32_t* ids, Rows out, int64_t dim) {
  const int64_t token = blockIdx.x, id = ids[token];
  for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) out.set(token, 0, d, table.get(id, 0, d));
}

}  // namespace

void embedding(const EmbeddingArgs& a, const OpContext& context) {
  check(a);
  if (a.out.numel() == 0) return;
  gather_rows<<<static_cast<unsigned>(a.out.dim(0)), 256, 0, stream_of(context).handle>>>(
      Rows(a.table), static_cast<const int32_t*>(a.ids.data()), Rows(a.out), a.out.dim(1));
  check_launch("embedding");
}

}  // namespace headrace::cuda
