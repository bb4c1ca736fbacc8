#include "headrace/kernels/cuda/paged_attention_sm90.cuh"

namespace headrace::cuda {

template void attend_sm90_tall<__half, 256, PoolHolds::kFloats>(const AttentionCall& call, const Stream& stream);
template void attend_sm90_few<__half, 256, PoolHolds::kFloats>(const AttentionCall& call, const Stream& stream);

}  // namespace headrace::cuda
