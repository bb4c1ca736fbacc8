// Whether this build runs on a device.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace headrace::cuda {

// Error kNoDevice unless device `index` is there and code of this build runs on it. Makes it the current one.
cudaDeviceProp checked_device(int32_t index);

// cudaSuccess if the current device runs this build's code.
cudaError_t try_code();

}  // namespace headrace::cuda
