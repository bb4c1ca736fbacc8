// The CUDA part of headrace is a shared library that is loaded on first use, so the same program starts on machines
// without CUDA.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/device_runtime.h"
#include "headrace/ops/op_set.h"

namespace headrace {

// A GPU as its driver describes it. A listed GPU may still be unsupported by this build: CudaModule::make_runtime
// decides.
struct CudaDevice {
  std::string name;
  int64_t total_bytes = 0;
  int32_t capability = 0;  // compute capability, 90 for 9.0
};

// Entry points of the CUDA library. Its functions throw Error, as those of this library do.
struct CudaModule {
  int32_t version = 0;  // kCudaModuleVersion of the build of the library
  // Makes a runtime of a device, with a stream, scratch memory and cached blocks of its own. Callable from any thread,
  // also while other runtimes of the device are used. Throws Error kNoDevice if there is no driver, no such device or
  // no code for its architecture; kOutOfMemory if the device's memory is full.
  std::unique_ptr<DeviceRuntime> (*make_runtime)(int32_t index) = nullptr;
  // Makes a runtime whose stream is the caller's `stream`, a cudaStream_t of the device that outlives it; null is the
  // default stream. Its kernels start when all earlier work of the stream has ended, whoever queued it. Callable while
  // streams capture, also this one. Errors as make_runtime.
  std::unique_ptr<DeviceRuntime> (*make_runtime_on)(int32_t index, void* stream) = nullptr;
  // Returns true if work queued on the cudaStream_t is captured now. Error kCuda.
  bool (*is_capturing)(void* stream) = nullptr;
  // Returns a table of kernels for contexts whose stream belongs to a runtime of this module:
  // - "cuda": kernels of the device's architecture where they fit;
  // - "cuda_baseline": kernels that run on any device from sm_80 on;
  // - "cuda_reference": the baseline with attention as AttnImpl::kReference.
  // Throws Error kUnsupported for another name.
  const OpSet& (*ops)(std::string_view name) = nullptr;
  // Returns the devices in the order of their indices; empty if there are none.
  std::vector<CudaDevice> (*devices)() = nullptr;
  // Returns the free bytes of a device. Creates its CUDA context. Throws as make_runtime() does.
  int64_t (*free_bytes)(int32_t index) = nullptr;
  // Returns the newest CUDA version that the driver supports, 13000 for 13.0; 0 without a driver.
  int32_t (*driver_cuda)() = nullptr;
};

// Names a layout of the structs that the program shares with the library. The list of ops is part of it; raise kLayout
// with any other change of CudaModule, OpSet, DeviceRuntime or an Args struct.
constexpr int32_t cuda_module_version(std::string_view ops) {
  constexpr uint32_t kLayout = 13;
  uint32_t hash = kLayout;
  for (const char c : ops) hash = hash * 31 + static_cast<unsigned char>(c);
  return static_cast<int32_t>(hash & 0x7fffffff);
}
#define HR_NAME(op, Args) #op "(" #Args ") "
inline constexpr int32_t kCudaModuleVersion = cuda_module_version(HR_OPS(HR_NAME, HR_NAME, HR_NAME));
#undef HR_NAME

// Loads libheadrace_cuda.so once and returns its entry points. Looks beside the program, then in ../lib, then where the
// dynamic loader searches. Throws Error kNoDevice if the library is not built, not found, lacks a dependency or has
// another version.
const CudaModule& cuda_module();

}  // namespace headrace
