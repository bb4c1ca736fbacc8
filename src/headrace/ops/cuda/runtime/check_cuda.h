// Failed calls of the CUDA runtime as errors. Every CUDA source reads this: the error itself stays out of it.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace headrace::cuda {

struct MemoryLeft;  // memory_left.h
// Of the current device.
MemoryLeft memory_left() noexcept;

// Error kCuda with the call's name and the runtime's reason; kOutOfMemory, with what is free, for a full device.
[[noreturn]] void throw_failed(cudaError_t status, const char* what);
inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_failed(status, what);
}

// Likewise of a call for `bytes` of pinned memory, where it is the host that is full.
void check_pinned(cudaError_t status, size_t bytes);

}  // namespace headrace::cuda
