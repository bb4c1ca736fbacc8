// Dispatch of the sm80 attention kernels.
#include "headrace/ops/cuda/attention/sm80/fmha.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "headrace/ops/cuda/attention/paged_attention.h"

namespace headrace::cuda {

namespace {

template <class T, PoolElements kPool>
void attend_in(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const int dim = std::max(p.head_dim, p.v_head_dim);
  const auto attend = dim <= 64    ? fmha_mma_of<T, 64, kPool>
                      : dim <= 128 ? fmha_mma_of<T, 128, kPool>
                                   : fmha_mma_of<T, 256, kPool>;
  attend(p, shape, stream);
}

}  // namespace

void fmha_sm80(const AttentionParams& p, const AttentionShape& shape, const Stream& stream) {
  const bool bf16 = p.q_type == DType::kBF16;
  if (p.key_type == DType::kE4M3) {
    (bf16 ? attend_in<__nv_bfloat16, PoolElements::kFp8> : attend_in<__half, PoolElements::kFp8>)(p, shape, stream);
  } else {
    (bf16 ? attend_in<__nv_bfloat16, PoolElements::kFloats> : attend_in<__half, PoolElements::kFloats>)(p, shape,
                                                                                                        stream);
  }
}

}  // namespace headrace::cuda
