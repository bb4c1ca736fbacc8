#include "headrace/kernels/cuda/paged_attention_strict_stream.cuh"

namespace headrace::cuda {

template void attend_strict_stream_of<__half, 16>(const StrictStreamCall&, int64_t, int, const Stream&);

}  // namespace headrace::cuda
