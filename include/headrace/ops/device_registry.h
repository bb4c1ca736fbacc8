// Opens devices by name.
#pragma once
#include <string_view>

#include "headrace/core/log.h"
#include "headrace/core/tensor.h"

namespace headrace {

// Returns the runtime of a device; it lives until the program ends. Names: "cpu"; "cuda" (the first device) or
// "cuda:1"; "auto": the first usable CUDA device, else the CPU. `log` gets a warning for each CUDA device that "auto"
// skips because this build has no code for it or its memory is full. Throws Error kInvalidArgument for another name;
// kNoDevice or kOutOfMemory if a device requested by name cannot be used.
DeviceRuntime& open_device(std::string_view name, const LogCallback& log = {});

}  // namespace headrace
