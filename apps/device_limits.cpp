#include "device_limits.h"

#include <functional>

#include "bench/measured_limits.h"
#include "bench/report.h"
#include "headrace/base/device_runtime.h"
#include "headrace/kernels/cuda_module.h"

namespace headrace::app {

DeviceLimits measured_limits(DeviceRuntime& runtime, const OpContext& context) {
  constexpr int64_t kBytes = int64_t{1} << 30, kSize = 8192;
  constexpr int kTimes = 20;
  const Tensor from = Tensor::zeros(DType::kU8, {kBytes}, runtime), to(DType::kU8, {kBytes}, runtime);
  const auto per_call = [&runtime](const std::function<void()>& call) {
    return bench::median_seconds(5,
                                 [&] {
                                   for (int i = 0; i < kTimes; ++i) call();
                                   runtime.synchronize();
                                 }) /
           kTimes;
  };
  const double copy = per_call([&] { runtime.copy_on_device(to.data(), from.data(), kBytes); });
  const Tensor host = bench::filled(DType::kBF16, {kSize, kSize});  // zeros would flatter
  const Tensor x(DType::kBF16, {kSize, kSize}, runtime), y(DType::kBF16, {kSize, kSize}, runtime);
  runtime.copy_to_device(x.data(), host.data(), static_cast<size_t>(host.view().bytes()));
  OpContext fast = context;
  fast.determinism = Determinism::kFast;
  const double product = per_call([&] { cuda_module().ops("cuda").linear({.x = x, .weight = x, .y = y}, fast); });
  return {2.0 * kBytes / copy, 2.0 * kSize * kSize * kSize / product};
}

}  // namespace headrace::app
