#include "headrace/ops/cuda/runtime/device_check.h"

namespace headrace::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

cudaError_t try_code() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, nothing);
  if (status != cudaSuccess) cudaGetLastError();  // the error is handled by the caller
  return status;
}

}  // namespace headrace::cuda
