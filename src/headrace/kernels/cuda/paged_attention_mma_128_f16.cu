#include "headrace/kernels/cuda/paged_attention_mma.cuh"

namespace headrace::cuda {

template void attend_mma_of<__half, 128, PoolOf::kFloats>(const AttentionParams& p, const AttentionShape& shape,
                                                          const Stream& stream);

}  // namespace headrace::cuda
