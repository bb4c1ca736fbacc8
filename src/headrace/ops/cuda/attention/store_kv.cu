#include <algorithm>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/checks.h"
#include "headrace/ops/cuda/arch/pdl.cuh"
#include "headrace/ops/cuda/arch/vec8.cuh"
#include "headrace/ops/cuda/attention/common/fp8.cuh"
#include "headrace/ops/cuda/ops.h"

namespace headrace::cuda {
namespace {

constexpr int kThreads = 128;

// One side of the pool: [pages, heads, page_size, dim].
struct PoolSide {
  void* data;
  DType type;
  int64_t page_stride, head_stride, slot_stride, dim;
  float scale;  // FP8 only

  PoolSide(const TensorView& x, float scale_of_codes)
      : data(x.data()),
        type(x.dtype()),
        page_stride(x.stride(0)),
        head_stride(x.stride(1)),
        slot_stride(x.stride(2)),
        dim(x.dim(3)),
        scale(scale_of_codes) {}
  __device__ int64_t at(int64_t slot, int64_t page_size, int64_t head) const {
    return slot / page_size * page_stride + head * head_stride + slot % page_size * slot_stride;
  }
  __device__ void set(int64_t i, float x) const {
    if (type == DType::kE4M3) {
      static_cast<uint8_t*>(data)[i] = float_to_e4m3(x, scale);
    } else {
      store(data, type, i, x);
    }
  }
};

struct Params {
  Rows k, v;
  PoolSide to_k, to_v;
  const int64_t* slots;
  int64_t page_size, heads;
};

__device__ inline void store_values(const ElementAccess::Values& value, const PoolSide& to, int64_t at) {
  to.set(at, value.v[0]);
}
template <class T>
__device__ inline void store_values(const Vec8<T>& piece, const PoolSide& to, int64_t at) {
  if (to.type != DType::kE4M3) return piece.store(static_cast<T*>(to.data) + at);
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = floats_to_e4m3(piece.v[2 * i], piece.v[2 * i + 1], to.scale);
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(to.data) + at) = {pairs[0] | pairs[1] << 16,
                                                                    pairs[2] | pairs[3] << 16};
}

// One CTA per token.
template <class Access>
__global__ void __launch_bounds__(kThreads) store_token(const __grid_constant__ Params p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t token = blockIdx.x, slot = p.slots[token];
  if (slot == kDoNotStore) return;
  constexpr int kWidth = Access::kWidth;
  const int64_t k_vecs = p.heads * p.to_k.dim / kWidth, all = k_vecs + p.heads * p.to_v.dim / kWidth;
  for (int64_t i = threadIdx.x; i < all; i += kThreads) {
    const bool of_k = i < k_vecs;
    const Rows& from = of_k ? p.k : p.v;
    const PoolSide& to = of_k ? p.to_k : p.to_v;
    const int64_t at = (of_k ? i : i - k_vecs) * kWidth, head = at / to.dim, d = at % to.dim;
    store_values(Access::load(from, token, head, d), to, to.at(slot, p.page_size, head) + d);
  }
}

}  // namespace

void store_kv(const StoreKVArgs& a, const OpContext& context) {
  check(a);
  refuse_int8_pool("store_kv", a.kv);
  if (a.k.numel() == 0) return;
  const Stream& stream = stream_of(context);
  const Params p{.k = Rows(a.k),
                 .v = Rows(a.v),
                 .to_k = PoolSide(a.kv.k, a.kv.k_scale),
                 .to_v = PoolSide(a.kv.v, a.kv.v_scale),
                 .slots = static_cast<const int64_t*>(a.slots.data()),
                 .page_size = a.kv.page_size(),
                 .heads = a.k.dim(1)};
  const DType type = a.k.dtype();
  const auto fits = [type](const TensorView& x) {
    return (x.dtype() == type || x.dtype() == DType::kE4M3) && is_vec8(x);
  };
  const dim3 grid(static_cast<unsigned>(a.k.dim(0)));
  const bool packed = fits(a.k) && fits(a.v) && fits(a.kv.k) && fits(a.kv.v);
  for_access(packed, type, [&]<class Access>(Access) {
    launch_pdl(stream, store_token<Access>, grid, dim3(kThreads), 0, p, "store_kv");
  });
}

}  // namespace headrace::cuda
