// The runtime that a test program's tests share on a GPU.
#pragma once
#include <array>
#include <memory>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"

namespace headrace::testing_support {

// `index`: 0 or 1. Errors as CudaModule::make_runtime.
inline DeviceRuntime& gpu(int32_t index = 0) {
  static std::array<std::unique_ptr<DeviceRuntime>, 2> opened;
  std::unique_ptr<DeviceRuntime>& one = opened.at(static_cast<size_t>(index));
  if (!one) one = cuda_module().make_runtime(index);
  return *one;
}

}  // namespace headrace::testing_support
