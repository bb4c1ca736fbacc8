#include "headrace/kernels/cuda/paged_attention_sm90.cuh"

namespace headrace::cuda {

template void attend_sm90_tall<__nv_bfloat16, 128, PoolHolds::kFloats>(const AttentionCall& call, const Stream& stream);

}  // namespace headrace::cuda
