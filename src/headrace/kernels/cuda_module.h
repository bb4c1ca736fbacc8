// The CUDA part of headrace: a side library that is loaded when a device is asked for, so that the same program starts
// on a machine without CUDA.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/base/device.h"
#include "headrace/kernels/op_set.h"

namespace headrace {

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
  // One line for each device: name, memory, architecture. Empty when there is none.
  std::vector<std::string> (*devices)() = nullptr;
};

inline constexpr int32_t kCudaModuleVersion = 9;

// Loads libheadrace_cuda.so once: the one beside the program, that in lib/ beside its directory, or what the loader
// finds by that name. Error kNoDevice, one sentence: not built, not found, its libraries are missing, or of another
// version.
const CudaModule& cuda_module();

}  // namespace headrace
