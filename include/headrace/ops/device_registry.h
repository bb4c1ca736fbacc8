// Opens devices by name.
#pragma once
#include <memory>
#include <string_view>

#include "headrace/core/log.h"
#include "headrace/core/tensor.h"

namespace headrace {

// Returns a runtime of a device. A CUDA device gets a new one with each call, which has a stream and 320 MiB of scratch
// memory of its own and ends with the last pointer to it. The CPU has one, cpu_runtime(). Callable from any thread.
// Names: "cpu"; "cuda" (the first device) or "cuda:1"; "auto": the first usable CUDA device, else the CPU. `log` gets a
// warning for each CUDA device that "auto" skips because this build has no code for it or its memory is full. Throws
// Error kInvalidArgument for another name; kNoDevice or kOutOfMemory if a device requested by name cannot be used.
std::shared_ptr<DeviceRuntime> open_device(std::string_view name, const LogCallback& log = {});

}  // namespace headrace
