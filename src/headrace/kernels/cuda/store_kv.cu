#include "headrace/batch/attn_metadata.h"
#include "headrace/kernels/cuda/element.cuh"
#include "headrace/kernels/cuda/ops.h"
#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {
namespace {

// One side of the pool: [pages, heads, page_size, dim].
struct PoolSide {
  void* data;
  DType type;
  int64_t page_stride, head_stride, slot_stride, dim;

  explicit PoolSide(const TensorView& x)
      : data(x.data()),
        type(x.dtype()),
        page_stride(x.stride(0)),
        head_stride(x.stride(1)),
        slot_stride(x.stride(2)),
        dim(x.dim(3)) {}
};

__global__ void store_side(Rows from, PoolSide to, const int64_t* slots, int64_t page_size) {
  const int64_t token = blockIdx.x, head = blockIdx.y, slot = slots[token];
  if (slot == kDoNotStore) return;
  const int64_t at = slot / page_size * to.page_stride + head * to.head_stride + slot % page_size * to.slot_stride;
  for (int64_t d = threadIdx.x; d < to.dim; d += blockDim.x) store(to.data, to.type, at + d, from.get(token, head, d));
}

}  // namespace

void store_kv(const StoreKVArgs& a, const OpContext& context) {
  check(a);
  if (a.k.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const dim3 grid(static_cast<unsigned>(a.k.dim(0)), static_cast<unsigned>(a.k.dim(1)));
  const auto* slots = static_cast<const int64_t*>(a.slots.data());
  store_side<<<grid, 128, 0, stream.handle>>>(Rows(a.k), PoolSide(a.kv.k), slots, a.kv.page_size());
  store_side<<<grid, 128, 0, stream.handle>>>(Rows(a.v), PoolSide(a.kv.v), slots, a.kv.page_size());
  check_launch("store_kv");
}

}  // namespace headrace::cuda
