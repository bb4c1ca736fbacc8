#include "headrace/kernels/cuda/paged_attention_strict_cluster.cuh"

namespace headrace::cuda {

template void attend_strict_cluster_of<__half>(const StrictClusterCall&, int64_t, int, const Stream&);

}  // namespace headrace::cuda
