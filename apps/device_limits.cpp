#include "device_limits.h"

#include <cstdint>
#include <functional>

#include "bench/random_inputs.h"
#include "headrace/core/device_runtime.h"
#include "headrace/ops/cuda_module.h"
#include "seconds_since.h"

namespace headrace::app {
namespace {

// Returns the seconds of one call while calls follow one another for a second.
double sustained_seconds(DeviceRuntime& runtime, const std::function<void()>& call) {
  constexpr double kSeconds = 1;
  constexpr int kAtOnce = 20;
  int64_t calls = 0;
  double passed = 0;
  call();
  runtime.synchronize();
  for (const auto start = Clock::now(); passed < kSeconds; passed = seconds_since(start)) {
    for (int i = 0; i < kAtOnce; ++i) call();
    runtime.synchronize();
    calls += kAtOnce;
  }
  return passed / static_cast<double>(calls);
}

}  // namespace

DeviceLimits measured_limits(DeviceRuntime& runtime, const OpContext& context) {
  constexpr int64_t kBytes = int64_t{1} << 30, kSide = 8192;
  const Tensor from = Tensor::zeros(DType::kU8, {kBytes}, runtime), to(DType::kU8, {kBytes}, runtime);
  const double copy = sustained_seconds(runtime, [&] { runtime.copy_on_device(to.data(), from.data(), kBytes); });
  const Tensor host = bench::normal_values(DType::kBF16, {kSide, kSide});
  const Tensor x(DType::kBF16, {kSide, kSide}, runtime), y(DType::kBF16, {kSide, kSide}, runtime);
  runtime.copy_to_device(x.data(), host.data(), static_cast<size_t>(host.view().bytes()));
  OpContext fast = context;
  fast.determinism = Determinism::kFast;
  const double product =
      sustained_seconds(runtime, [&] { cuda_module().ops("cuda").linear({.x = x, .weight = x, .y = y}, fast); });
  return {2.0 * kBytes / copy, 2.0 * kSide * kSide * kSide / product};
}

}  // namespace headrace::app
