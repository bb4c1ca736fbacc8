#include "headrace/kernels/cuda/paged_attention_sm90.cuh"

namespace headrace::cuda {

template void attend_sm90_of<__half, 128, PoolHolds::kFloats>(const AttentionCall& call, int max_rows,
                                                              const Stream& stream);

}  // namespace headrace::cuda
