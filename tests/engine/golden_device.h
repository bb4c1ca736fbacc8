// Where a golden test decodes: on the CPU, on the fake device, or on GPU 0. In float32.
#pragma once
#include "engine/golden_batches.h"
#include "engine/test_device.h"

namespace headrace::testing_support {

enum class GoldenDevice : uint8_t { kCpu, kFake, kCuda };

inline TestDevice device_of(GoldenDevice device) {
  const char* const name = device == GoldenDevice::kCpu    ? kOnCpu
                           : device == GoldenDevice::kFake ? kOnFakeDevice
                                                           : kOnGpu;
  return *test_device(name);
}

inline bool has_cuda() { return test_device(kOnGpu).has_value(); }

inline std::unique_ptr<Model> golden_model(const std::string& checkpoint, GoldenDevice device) {
  const TestDevice there = device_of(device);
  ModelOptions options = there.model_options(there.context());
  options.dtype = DType::kF32;
  return load_model(golden_folder(checkpoint), options);
}

inline RunnerConfig golden_runner(GoldenDevice device) {
  const TestDevice there = device_of(device);
  return there.with_place({.num_pages = 64, .page_size = 16, .max_tokens = 256}, there.context());
}

}  // namespace headrace::testing_support
