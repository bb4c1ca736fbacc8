// See gate_up_sm90.cuh.
#include "headrace/kernels/cuda/gate_up_sm90.cuh"

namespace headrace::cuda::gate_up {

template void launch_of<__nv_bfloat16>(int width, const Params& p, const Stream& stream);

}  // namespace headrace::cuda::gate_up
