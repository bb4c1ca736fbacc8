// Checks that this build runs on a device.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace headrace::cuda {

// Makes device `index` current and returns its properties. Throws kNoDevice if it does not exist or this build has no
// code for it.
cudaDeviceProp checked_device(int32_t index);

// Returns cudaSuccess if the current device runs this build's code.
cudaError_t try_code();

}  // namespace headrace::cuda
