#include "gpu_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>

#include "headrace/core/error.h"
#include "headrace/ops/device_registry.h"
#include "json.h"

namespace headrace::app {
namespace {

std::string driver_release() {
  std::ifstream in("/sys/module/nvidia/version");
  std::string release;
  std::getline(in, release);
  return release;
}

std::string version_of(int32_t cuda) { return fmt::format("{}.{}", cuda / 1000, cuda % 1000 / 10); }
std::string capability_of(const CudaDevice& d) { return fmt::format("{}.{}", d.capability / 10, d.capability % 10); }
double gb(int64_t bytes) { return static_cast<double>(bytes) / 1e9; }

GpuReport::Gpu started(const CudaDevice& device, int32_t index) {
  try {
    open_device(str("cuda:", index));  // and closes it
    return {.device = device, .free_bytes = cuda_module().free_bytes(index)};
  } catch (const Error& e) {
    return {.device = device, .why_not = e.what()};
  }
}

}  // namespace

GpuReport report_gpus() {
  GpuReport report{.driver = driver_release()};
  try {
    const std::vector<CudaDevice> devices = cuda_module().devices();
    report.driver_cuda = cuda_module().driver_cuda();
    for (const CudaDevice& d : devices) report.gpus.push_back(started(d, static_cast<int32_t>(report.gpus.size())));
    if (devices.empty()) open_device("cuda");  // its error says why
  } catch (const Error& e) {
    report.why_none = e.what();
  }
  return report;
}

std::string lines_of(const GpuReport& report) {
  if (report.gpus.empty()) return fmt::format("gpu      none: {}\n", report.why_none);
  std::string lines;
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const auto& [device, free_bytes, why_not] = report.gpus[i];
    const std::string state =
        why_not.empty() ? fmt::format(", {:.1f} GB free", gb(free_bytes)) : ": cannot be used: " + why_not;
    lines += fmt::format("gpu      cuda:{} {}, {:.1f} GB, compute capability {}{}\n", i, device.name,
                         gb(device.total_bytes), capability_of(device), state);
  }
  return lines + fmt::format("driver   {}CUDA {} or older\n", report.driver.empty() ? "" : report.driver + ", ",
                             version_of(report.driver_cuda));
}

std::string json_of(const GpuReport& report) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? "null" : json_string(text); };
  std::vector<std::string> objects;
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const auto& [device, free_bytes, why_not] = report.gpus[i];
    objects.push_back(fmt::format(
        R"({{"device": "cuda:{}", "name": {}, "total_bytes": {}, "free_bytes": {}, "compute_capability": "{}", "why_not": {}}})",
        i, json_string(device.name), device.total_bytes, free_bytes, capability_of(device), text_or_null(why_not)));
  }
  return fmt::format(R"("gpus": [{}], "driver": {}, "driver_cuda": {}, "why_no_gpu": {})", fmt::join(objects, ", "),
                     text_or_null(report.driver),
                     text_or_null(report.driver_cuda == 0 ? "" : version_of(report.driver_cuda)),
                     text_or_null(report.why_none));
}

}  // namespace headrace::app
