// Where an engine test runs: on the CPU, on the fake device, or on GPU 0.
#pragma once
#include <optional>
#include <string>

#include "bench/fake_device.h"
#include "headrace/engine/model_runner.h"
#include "headrace/models/model_registry.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/cuda_module.h"
#include "support/device_mirror.h"
#include "support/gpu.h"

namespace headrace::testing_support {

inline constexpr const char *kOnCpu = "cpu", *kOnFakeDevice = "fake", *kOnGpu = "cuda",
                            *kOnGpuBaseline = "cuda_baseline";

struct TestDevice {
  std::string name;            // one of the above
  DeviceRuntime* runtime;      // not owned
  const OpSet* ops = nullptr;  // not owned; null: those of the CPU

  OpContext context(Determinism determinism = Determinism::kFast) const {
    return {.determinism = determinism, .stream = runtime->stream()};
  }
  ModelOptions model_options(const OpContext& context) const {
    return {.ops = ops, .context = context, .runtime = runtime};
  }
  RunnerConfig with_place(RunnerConfig runner, const OpContext& context) const {
    const bool fake = name == kOnFakeDevice;
    runner.backend = fake ? std::string(kOnGpu) : name, runner.ops = fake ? ops : nullptr;
    runner.runtime = runtime, runner.context = context;
    return runner;
  }
};

// Such a checkpoint does not run on the fake device.
inline bool has_experts(const std::string& golden) {
  return golden.find("moe") != std::string::npos || golden == "qwen3_next" || golden.starts_with("llada2");
}

// Absent on a machine without such a device.
inline std::optional<TestDevice> test_device(const std::string& name) {
  if (name == kOnCpu) return TestDevice{name, &cpu_runtime()};
  if (name == kOnFakeDevice) {
    static bench::FakeDevice fake(cpu::select_kernel_set());
    return TestDevice{name, &fake, &fake.ops()};
  }
  if (mirrored_cuda_ops(name) == nullptr) return std::nullopt;
  return TestDevice{name, &gpu(), &cuda_module().ops(name)};
}

}  // namespace headrace::testing_support
