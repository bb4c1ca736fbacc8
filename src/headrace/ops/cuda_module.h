// The CUDA part of headrace: a side library that is loaded when a device is asked for, so that the same program starts
// on a machine without CUDA.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/core/device.h"
#include "headrace/ops/op_set.h"

namespace headrace {

// A GPU as its driver describes it. Nothing says that this build runs on it: CudaModule::runtime does.
struct CudaDevice {
  std::string name;
  int64_t total_bytes = 0;
  int32_t capability = 0;  // compute capability, 90 for 9.0
};

// What the side library offers. Its functions throw Error as those of this library do.
struct CudaModule {
  int32_t version = 0;  // kCudaModuleVersion of the build that made it
  // The runtime of a device: one for each, alive until the program ends, and so everybody's who asks for that device:
  // one thread at a time uses it (DeviceRuntime). This function itself is callable from any thread. Error kNoDevice: no
  // driver, no such device, or an architecture that is not built; kOutOfMemory where others fill the device.
  DeviceRuntime& (*runtime)(int32_t index) = nullptr;
  // Kernels for contexts whose stream is that of a runtime: the set "cuda", which takes those of the device's
  // architecture where they fit, "cuda_baseline", which any device from sm_80 on runs, "cuda_reference", which
  // attends as AttnImpl::kReference and is the baseline else, or "cuda_chained", for tests: "cuda" with every product
  // of few rows in a chain, fast or not. Error kUnsupported for another name.
  const OpSet& (*ops)(std::string_view name) = nullptr;
  // In the order of their indices. Empty when there is none.
  std::vector<CudaDevice> (*devices)() = nullptr;
  // Bytes of a device that nobody uses. Starts its context. Errors as runtime().
  int64_t (*free_bytes)(int32_t index) = nullptr;
  // The newest CUDA that the driver supports, 13000 for 13.0; 0 without a driver.
  int32_t (*driver_cuda)() = nullptr;
};

inline constexpr int32_t kCudaModuleVersion = 10;

// Loads libheadrace_cuda.so once: the one beside the program, that in lib/ beside its directory, or what the loader
// finds by that name. Error kNoDevice, one sentence: not built, not found, its libraries are missing, or of another
// version.
const CudaModule& cuda_module();

}  // namespace headrace
