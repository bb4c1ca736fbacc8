#include "headrace/kernels/cuda/paged_attention_sm90.cuh"

namespace headrace::cuda {

template void attend_sm90_of<__nv_bfloat16, 128, PoolHolds::kCodes>(const AttentionCall& call, int max_rows,
                                                                    const Stream& stream);

}  // namespace headrace::cuda
