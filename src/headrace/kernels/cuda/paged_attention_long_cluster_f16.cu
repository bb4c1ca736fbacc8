#include "headrace/kernels/cuda/paged_attention_long_cluster.cuh"

namespace headrace::cuda {

template int room_for_long_clusters<__half>(int, int);
template void attend_long_cluster_of<__half>(const LongClusterCall&, int, const Stream&);

}  // namespace headrace::cuda
