// Calls that a capture forbids.
#pragma once
#include <cuda_runtime.h>

#include "headrace/ops/cuda/runtime/check_cuda.h"

namespace headrace::cuda {

// While alive, the calling thread may allocate, wait for other streams and load kernels although a stream captures.
class RelaxedCapture {
 public:
  RelaxedCapture() { check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode"); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // after the constructor: the mode to return to
};

}  // namespace headrace::cuda
