#include "headrace/ops/cuda/runtime/device_check.h"

#include "headrace/core/error.h"
#include "headrace/ops/cuda/runtime/no_device_reason.h"
#include "headrace/ops/cuda/runtime/stream.h"

namespace headrace::cuda {
cudaDeviceProp checked_device(int32_t index) {
  int count = 0, driver = 0, runtime = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    throw Error(ErrorCode::kNoDevice, "cuda: " + no_device_reason(driver, runtime, cudaGetErrorString(status)));
  }
  HR_REQUIRE(index >= 0 && index < count, ErrorCode::kNoDevice, "cuda: device ", index,
             " is not there; this machine has ", count);
  check_cuda(cudaSetDevice(index), "cudaSetDevice");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  const cudaError_t code = try_code();
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction) {
    throw Error(ErrorCode::kNoDevice,
                "cuda: " + not_built_reason(index, properties.name, properties.major * 10 + properties.minor,
                                            HEADRACE_CUDA_ARCHITECTURES));
  }
  check_cuda(code, "loading the kernels");
  return properties;
}

}  // namespace headrace::cuda
