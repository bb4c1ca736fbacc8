// Error texts for a device that cannot be used.
#pragma once
#include <string>
#include <string_view>

#include "headrace/core/error.h"

namespace headrace::cuda {

// Returns why no device can be used. Versions are those of CUDA as the driver and the runtime report them, 13000 for
// 13.0. Driver 0 means that none is installed. `error` is the runtime's own text.
inline std::string no_device_reason(int driver, int runtime, std::string_view error) {
  const auto name = [](int version) { return str(version / 1000, ".", version % 1000 / 10); };
  if (driver == 0) return "no NVIDIA driver is installed";
  if (driver / 1000 < runtime / 1000) {
    return str("the NVIDIA driver is too old: it runs CUDA ", name(driver), ", expected ", name(runtime), " or newer");
  }
  return str("no device can be used: ", error);
}

// Returns the text for a device that this build has no code for. `arch` is 90 for sm_90; `built` lists the
// architectures.
inline std::string not_built_reason(int index, std::string_view name, int arch, std::string_view built) {
  return str("device ", index, " (", name, ") is sm_", arch, "; built are: ", built);
}

}  // namespace headrace::cuda
