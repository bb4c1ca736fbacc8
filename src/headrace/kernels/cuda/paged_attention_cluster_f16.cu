#include "headrace/kernels/cuda/paged_attention_cluster.cuh"

namespace headrace::cuda {

template void attend_cluster_of<__half>(const AttentionParams&, int64_t, int, const Stream&);

}  // namespace headrace::cuda
