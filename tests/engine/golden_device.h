// Where a golden test decodes: on the CPU, or on device 0.
#pragma once
#include "engine/golden_batches.h"
#include "headrace/ops/cuda_module.h"
#include "support/device_mirror.h"

namespace headrace::testing_support {

enum class GoldenDevice : uint8_t { kCpu, kCuda };

inline bool has_cuda() { return mirrored_cuda_ops() != nullptr; }

// In float32.
inline std::unique_ptr<Model> golden_model(const std::string& checkpoint, GoldenDevice device) {
  ModelOptions options{.dtype = DType::kF32, .context = {.threads = 1}};
  if (device == GoldenDevice::kCuda) {
    options.ops = &cuda_module().ops("cuda");
    options.runtime = &cuda_module().runtime(0);
    options.context.stream = options.runtime->stream();
  }
  return load_model(golden_folder(checkpoint), options);
}

inline RunnerConfig golden_runner(GoldenDevice device) {
  RunnerConfig runner{.context = {.threads = 1}, .num_pages = 64, .page_size = 16, .max_tokens = 256};
  if (device == GoldenDevice::kCuda) {
    runner.runtime = &cuda_module().runtime(0);
    runner.context.stream = runner.runtime->stream();
  }
  return runner;
}

}  // namespace headrace::testing_support
