#include "headrace/kernels/cuda/paged_attention_long_cluster.cuh"

namespace headrace::cuda {

template int room_for_long_clusters<__nv_bfloat16>(int, int);
template void attend_long_cluster_of<__nv_bfloat16>(const LongClusterCall&, int, const Stream&);

}  // namespace headrace::cuda
