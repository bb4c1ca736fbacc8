#include "headrace/ops/device_registry.h"

#include <charconv>

#include "headrace/core/device_runtime.h"
#include "headrace/core/error.h"
#include "headrace/ops/cuda_module.h"

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

bool is_unusable(const Error& e) { return e.code() == ErrorCode::kNoDevice || e.code() == ErrorCode::kOutOfMemory; }

// Returns 0 if the CUDA library is not built or not found.
int32_t num_cuda_devices() {
  try {
    return static_cast<int32_t>(cuda_module().devices().size());
  } catch (const Error& e) {
    if (!is_unusable(e)) throw;
    return 0;
  }
}

// The CPU's runtime belongs to nobody.
std::shared_ptr<DeviceRuntime> cpu() { return {std::shared_ptr<void>(), &cpu_runtime()}; }

std::shared_ptr<DeviceRuntime> best_device(const LogCallback& log) {
  const int32_t count = num_cuda_devices();
  for (int32_t index = 0; index < count; ++index) {
    try {
      return cuda_module().make_runtime(index);
    } catch (const Error& e) {
      if (!is_unusable(e)) throw;
      const std::string next = index + 1 < count ? str("cuda:", index + 1, " is tried next") : "the CPU runs the model";
      if (log) log(LogLevel::kWarning, str("device auto: cuda:", index, " cannot be used, ", next, ": ", e.what()));
    }
  }
  return cpu();
}

}  // namespace

std::shared_ptr<DeviceRuntime> open_device(std::string_view name, const LogCallback& log) {
  if (name == "cpu") return cpu();
  if (name == "auto") return best_device(log);
  const int32_t index = index_of(name);
  return cuda_module().make_runtime(index);
}

}  // namespace headrace
