// Devices by the name that users give them.
#pragma once
#include <string_view>

#include "headrace/base/device.h"

namespace headrace {

// "cpu"; "cuda" (its first device) or "cuda:1"; "auto": the first CUDA device when the CUDA part is built and a device
// is there, else the CPU. The runtime lives until the program ends. Error kInvalidArgument for another name; kNoDevice,
// one sentence, when a device that is asked for by name cannot be used.
DeviceRuntime& open_device(std::string_view name);

}  // namespace headrace
