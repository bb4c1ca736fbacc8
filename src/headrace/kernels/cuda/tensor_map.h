// The driver's function that describes a tensor to the copy engine. It is asked for at run time: the side library links
// no driver.
#pragma once
#include <cuda.h>

#include "headrace/kernels/cuda/stream.h"

namespace headrace::cuda {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Error kCuda where the driver is too old to have it.
inline EncodeTiled tensor_map_encoder() {
  static const EncodeTiled encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
               "finding cuTensorMapEncodeTiled");
    HR_REQUIRE(found == cudaDriverEntryPointSuccess, ErrorCode::kCuda,
               "cuda: the driver has no cuTensorMapEncodeTiled; expected one of CUDA 12 or newer");
    return reinterpret_cast<EncodeTiled>(function);
  }();
  return encode;
}

}  // namespace headrace::cuda
