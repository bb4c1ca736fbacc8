#include "headrace/kernels/device_registry.h"

#include <charconv>

#include "headrace/base/device_runtime.h"
#include "headrace/base/error.h"
#include "headrace/kernels/cuda_module.h"

namespace headrace {
namespace {

constexpr std::string_view kCuda = "cuda";

int32_t index_of(std::string_view name) {
  if (name == kCuda) return 0;
  int32_t index = -1;
  if (name.starts_with("cuda:")) {
    const std::string_view digits = name.substr(kCuda.size() + 1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size()) index = -1;
  }
  HR_REQUIRE(index >= 0, ErrorCode::kInvalidArgument, "device '", name,
             "' is unknown, expected auto, cpu, cuda or cuda:N");
  return index;
}

DeviceRuntime& best_device() {
  try {
    if (!cuda_module().devices().empty()) return cuda_module().runtime(0);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kNoDevice) throw;  // without a device the CPU is the best
  }
  return cpu_runtime();
}

}  // namespace

DeviceRuntime& open_device(std::string_view name) {
  if (name == "cpu") return cpu_runtime();
  if (name == "auto") return best_device();
  const int32_t index = index_of(name);
  return cuda_module().runtime(index);
}

}  // namespace headrace
