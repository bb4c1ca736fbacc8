// Calls that a capture forbids.
#pragma once
#include <cuda_runtime.h>

namespace headrace::cuda {

// While alive, the calling thread may allocate, wait for other streams and load kernels although a stream captures.
class RelaxedCapture {
 public:
  // Fails only where there is no driver, as do the calls that follow, which say so.
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // after the constructor: the mode to return to
};

}  // namespace headrace::cuda
