#include "headrace/ops/cuda/runtime/check_cuda.h"

#include "headrace/core/error.h"
#include "headrace/core/host_memory.h"
#include "headrace/core/human_bytes.h"
#include "headrace/ops/cuda/runtime/memory_left.h"

namespace headrace::cuda {

MemoryLeft memory_left() noexcept {
  MemoryLeft left;
  if (cudaMemGetInfo(&left.available, &left.total) == cudaSuccess) return left;
  cudaGetLastError();  // clears this call's error, which is not the one to report
  return {};
}

void throw_failed(cudaError_t status, const char* what) {
  const std::string failed = str("cuda: ", what, " failed: ", cudaGetErrorString(status));
  if (status != cudaErrorMemoryAllocation) throw Error(ErrorCode::kCuda, failed);
  cudaGetLastError();  // cleared because it is thrown here: the next launch must not report it again
  throw Error(ErrorCode::kOutOfMemory, failed + said_of(memory_left()));
}

void check_pinned(cudaError_t status, size_t bytes) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // cleared because it is thrown here; it may be a fault of an earlier kernel
  if (status == cudaErrorMemoryAllocation) {
    throw Error(ErrorCode::kOutOfMemory, could_not_pin(bytes, available_host_memory()));
  }
  throw_failed(status, str("allocating ", human_bytes(bytes), " of pinned memory").c_str());
}

}  // namespace headrace::cuda
