#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measured_limits.h"
#include "commands.h"
#include "device_limits.h"
#include "doctor_model.h"
#include "explain.h"
#include "gpu_report.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/core/device_runtime.h"
#include "headrace/core/error.h"
#include "headrace/core/host_memory.h"
#include "headrace/core/parallel.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/device_registry.h"
#include "json.h"
#include "model_files.h"
#include "model_path.h"
#include "output.h"

namespace headrace::app {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 30;

// The value of a line of /proc/cpuinfo, of the first processor.
std::string cpu_line(std::string_view name) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name) && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  }
  return "";
}

// Returns the processor's features, as the system lists them, that kernels could use.
std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
  std::istringstream flags(cpu_line("flags") + cpu_line("Features"));  // of x86 and of aarch64
  for (std::string flag; flags >> flag;) {
    for (const std::string_view prefix : {"avx", "fma", "f16c", "amx", "asimd", "sve", "bf16", "i8mm"}) {
      if (flag.starts_with(prefix)) found.push_back(flag);
    }
  }
  return found;
}

// The kernel sets that another build of headrace has for this processor family.
std::vector<std::string_view> not_built_in() {
  std::vector<std::string_view> missing;
  for (const std::string_view name : cpu::known_kernel_sets()) {
    const auto is_it = [&](const cpu::KernelSet& set) { return set.ops->name == name; };
    if (std::ranges::none_of(cpu::kernel_sets(), is_it)) missing.push_back(name);
  }
  return missing;
}

// The CPU, and the GPU that --device auto takes.
std::vector<MachineLimits> measured_machines() {
  const int threads = available_cores();
  std::vector<MachineLimits> machines = {{.device = "cpu",
                                          .read_bytes_per_s = bench::read_bandwidth(threads, kReadBytes),
                                          .free_bytes = available_host_memory().value_or(0)}};
  const std::shared_ptr<DeviceRuntime> best = open_device("auto");
  if (best->device().type == DeviceType::kCPU) return machines;
  const int64_t free_bytes = cuda_module().free_bytes(best->device().index);
  machines.push_back({.device = to_string(best->device()),
                      .read_bytes_per_s = measured_limits(*best, {.stream = best->stream()}).copy_rate,
                      .free_bytes = free_bytes});
  return machines;
}

}  // namespace

int doctor_model(const std::string& model, Output output) {
  const std::filesystem::path directory = model_directory(model);
  require_model_files(directory);
  write_out(describe_model(directory, measured_machines, output));
  return 0;
}

int doctor_explain(const std::string& what, const std::string& model, Output output) {
  HR_REQUIRE(what.empty() != model.empty(), ErrorCode::kInvalidArgument,
             "--explain takes one thing, expected a call such as 'gemm m=8 n=9728 k=2560', or a model");
  const bool call = !what.empty() && (is_call(what) || !find_model(what));
  write_out(call ? explain_call(what, output) : explain_model(model_directory(what.empty() ? model : what), output));
  return 0;
}

int doctor(Output output) {
  const int threads = available_cores();
  const double read = bench::read_bandwidth(threads, kReadBytes);
  const double both = bench::read_write_bandwidth(threads, kReadBytes);
  const std::optional<double> matmul = bench::matrix_rate(threads);
  std::string sets;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) {
    if (output == Output::kJson) {
      sets +=
          fmt::format("{}{{\"name\": \"{}\", \"runs\": {}}}", sets.empty() ? "" : ", ", set.ops->name, set.runs_here());
    } else {
      sets += fmt::format("  {:<12} {}\n", set.ops->name, set.runs_here() ? "runs here" : "this machine lacks it");
    }
  }
  if (output == Output::kText) {
    for (const std::string_view name : not_built_in()) sets += fmt::format("  {:<12} not built in\n", name);
  }
  const GpuReport gpus = report_gpus();
  const std::string model = cpu_line("model name");
  const std::vector<std::string> features = cpu_features();
  const std::string_view best = cpu::select_kernel_set().name;
  if (output == Output::kJson) {
    std::string json_features;
    for (const std::string& f : features) json_features += (json_features.empty() ? "" : ", ") + json_string(f);
    write_out(
        fmt::format("{{\"cpu\": {}, \"cores\": {}, \"features\": [{}], \"kernel_sets\": [{}], \"selected\": \"{}\", "
                    "\"read_gb_s\": {:.1f}, "
                    "\"read_write_gb_s\": {:.1f}, \"matmul_bf16_tflop_s\": {}, {}}}\n",
                    json_string(model), threads, json_features, sets, best, read / 1e9, both / 1e9,
                    matmul ? fmt::format("{:.3f}", *matmul / 1e12) : "null", json_of(gpus)));
    return 0;
  }
  write_out(
      fmt::format("cpu      {} ({} cores)\nhas      {}\nkernels  {} is selected\n{}memory   {:.1f} GB/s read, {:.1f} "
                  "GB/s read and write\n"
                  "matmul   {}\n{}",
                  model, threads, fmt::join(features, " "), best, sets, read / 1e9, both / 1e9,
                  matmul ? fmt::format("{:.2f} TFLOP/s (oneDNN, bf16, 512 x 4096 x 4096)", *matmul / 1e12)
                         : fmt::format("not measured: {}", bench::why_no_matrix_rate()),
                  lines_of(gpus)));
  return 0;
}

}  // namespace headrace::app
