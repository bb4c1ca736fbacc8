// See grouped_matmul_sm90.cuh.
#include "headrace/kernels/cuda/grouped_matmul_sm90.cuh"

namespace headrace::cuda::grouped {

template void multiply_of<__nv_bfloat16>(const GroupedMatmul& product, const Stream& stream);

}  // namespace headrace::cuda::grouped
