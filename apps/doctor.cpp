#include <fmt/format.h>

#include <fstream>
#include <optional>
#include <string>

#include "bench/measured_limits.h"
#include "commands.h"
#include "headrace/attention/backend_registry.h"
#include "headrace/base/parallel.h"
#include "headrace/kernels/cpu/dispatch.h"
#include "json.h"
#include "output.h"

namespace headrace::app {
namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

int doctor(Output output) {
  const int threads = available_cores();
  constexpr int64_t kBytes = int64_t{1} << 30;
  const double read = bench::read_bandwidth(threads, kBytes), both = bench::read_write_bandwidth(threads, kBytes);
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
  const std::string_view best = cpu::select_kernel_set().name;
  if (output == Output::kJson) {
    write_out(
        fmt::format("{{\"cpu\": {}, \"cores\": {}, \"kernel_sets\": [{}], \"selected\": \"{}\", \"read_gb_s\": {:.1f}, "
                    "\"read_write_gb_s\": {:.1f}, \"matmul_bf16_tflop_s\": {}, \"gpus\": []}}\n",
                    json_string(cpu_model()), threads, sets, best, read / 1e9, both / 1e9,
                    matmul ? fmt::format("{:.3f}", *matmul / 1e12) : "null"));
    return 0;
  }
  write_out(fmt::format(
      "cpu      {} ({} cores)\nkernels  {} is selected\n{}memory   {:.1f} GB/s read, {:.1f} GB/s read and write\n"
      "matmul   {}\ngpu      no CUDA module is built\n",
      cpu_model(), threads, best, sets, read / 1e9, both / 1e9,
      matmul ? fmt::format("{:.2f} TFLOP/s (oneDNN, bf16, 512 x 4096 x 4096)", *matmul / 1e12)
             : "not measured: oneDNN does not multiply bf16 here"));
  return 0;
}

}  // namespace headrace::app
