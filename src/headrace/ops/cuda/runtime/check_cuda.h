// Turns failed calls of the CUDA runtime into Errors. Every CUDA source includes this header, so it does not include
// error.h.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace headrace::cuda {

struct MemoryLeft;  // memory_left.h
// Returns the free and total bytes of the current device; total is 0 if the runtime does not say.
MemoryLeft memory_left() noexcept;

// Throws kCuda with the call's name and the runtime's reason, or kOutOfMemory with the free bytes if the device is
// full.
[[noreturn]] void throw_failed(cudaError_t status, const char* what);
// Throws as throw_failed() unless `status` is cudaSuccess.
inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw_failed(status, what);
}

// Checks a call for `bytes` of pinned memory. Throws kOutOfMemory if the host is full, else as throw_failed().
void check_pinned(cudaError_t status, size_t bytes);

}  // namespace headrace::cuda
