// Conditions and dispatch of the sm80 attention kernels.
#include "headrace/ops/cuda/attention/sm80/fmha.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "headrace/core/dtype.h"
#include "headrace/ops/cuda/attention/paged_attention.h"

namespace headrace::cuda {

namespace {

// Returns true if rows start on 16 bytes, as 16-byte copies require.
bool aligned(const PagedSide& side, DType type) {
  if (side.data == nullptr) return true;
  const int64_t chunk = 16 / size_of(side.type);
  return side.type == type && reinterpret_cast<uintptr_t>(side.data) % 16 == 0 && side.page_stride % chunk == 0 &&
         side.head_stride % chunk == 0 && side.slot_stride % chunk == 0;
}

template <class T, PoolElements kPool>
void attend_in(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const int dim = std::max(p.head_dim, p.v_head_dim);
  const auto attend = dim <= 64    ? fmha_mma_of<T, 64, kPool>
                      : dim <= 128 ? fmha_mma_of<T, 128, kPool>
                                   : fmha_mma_of<T, 256, kPool>;
  attend(p, shape, stream);
}

}  // namespace

bool fits_sm80(const AttentionParams& p) {
  if (p.q_type != DType::kBF16 && p.q_type != DType::kF16) return false;
  const bool codes = p.key_type == DType::kE4M3;
  for (const PagedSide* side : {&p.k, &p.v}) {
    if (!aligned(*side, codes ? DType::kE4M3 : p.q_type)) return false;
  }
  for (const PagedSide* side : {&p.k_new, &p.v_new}) {
    if (!aligned(*side, p.q_type)) return false;
  }
  const bool rows = reinterpret_cast<uintptr_t>(p.q) % 16 == 0 && p.q_token_stride % 8 == 0 && p.q_head_stride % 8 == 0;
  const bool out =
      reinterpret_cast<uintptr_t>(p.out) % 4 == 0 && p.out_token_stride % 2 == 0 && p.out_head_stride % 2 == 0;
  const int chunk = codes ? 16 : 8;
  return rows && out && p.head_dim % chunk == 0 && p.v_head_dim % chunk == 0 &&
         std::max(p.head_dim, p.v_head_dim) <= 256;
}

bool fmha_sm80(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  if (!fits_sm80(p)) return false;
  const bool bf16 = p.q_type == DType::kBF16;
  if (p.key_type == DType::kE4M3) {
    (bf16 ? attend_in<__nv_bfloat16, PoolElements::kCodes> : attend_in<__half, PoolElements::kCodes>)(p, shape, stream);
  } else {
    (bf16 ? attend_in<__nv_bfloat16, PoolElements::kFloats> : attend_in<__half, PoolElements::kFloats>)(p, shape,
                                                                                                        stream);
  }
  return true;
}

}  // namespace headrace::cuda
