// What all runtimes of one device share.
#pragma once
#include <atomic>

#include "headrace/ops/cuda/gemm/cublaslt_plans.h"
#include "headrace/ops/cuda/runtime/kernel_attributes.h"

namespace headrace::cuda {

// Thread-safe. Lives as long as the library.
struct SharedDevice {
  KernelAttributes attributes;  // the driver keeps them per kernel, for all streams
  CublasLtHandles blas_handles;
  // Set while a runtime of this process may launch kernels whose CTAs wait for one another (GridBarrier).
  std::atomic_flag has_grid_barriers;
};

}  // namespace headrace::cuda
