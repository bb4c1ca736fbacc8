// Devices by the name that users give them.
#pragma once
#include <string_view>

#include "headrace/core/device.h"
#include "headrace/core/log.h"

namespace headrace {

// "cpu"; "cuda" (its first device) or "cuda:1"; "auto": the first CUDA device that can be used, else the CPU. `log`
// gets a warning for each CUDA device that "auto" passes over, because this build has no code for it or because it is
// full. The runtime lives until the program ends. Error kInvalidArgument for another name; kNoDevice or kOutOfMemory,
// one sentence, when a device that is asked for by name cannot be used.
DeviceRuntime& open_device(std::string_view name, const LogCallback& log = {});

}  // namespace headrace
