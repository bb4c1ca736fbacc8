// Products as decoding and prefill have them, on device 0, as a share of what the device copies or multiplies. Each
// time is that of one op within a graph of several over different weights, so that none is found in a cache.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "headrace/base/tensor.h"
#include "headrace/kernels/cuda_module.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kRotation = int64_t{512} << 20;  // bytes of weights, ten times the cache
constexpr int kRuns = 15;

struct Bench {
  DeviceRuntime& runtime = cuda_module().runtime(0);
  const OpSet& ops = cuda_module().ops("cuda");

  Tensor make(DType type, const Shape& shape) const { return Tensor(type, shape, runtime); }
  // Values between -0.05 and 0.05: zeros run faster than real data.
  Tensor random(const Shape& shape) const {
    Tensor host(DType::kBF16, shape);
    uint64_t z = 1;
    auto* to = host.data_as<BF16>();
    for (int64_t i = 0; i < host.numel(); ++i) {
      z = z * 6364136223846793005u + 1442695040888963407u;
      to[i] = BF16(static_cast<float>(static_cast<int32_t>(z >> 40) - (1 << 23)) * (0.05f / (1 << 23)));
    }
    return copied_to(runtime, std::move(host));
  }
  // Median seconds of one call of f(i), i < count.
  template <class F>
  double time(int count, const F& f) const {
    f(0);
    runtime.synchronize();
    runtime.begin_capture();
    for (int i = 0; i < count; ++i) f(i);
    const auto graph = runtime.end_capture();
    std::vector<double> times;
    for (int r = 0; r < kRuns + 2; ++r) {
      runtime.synchronize();
      const auto start = Clock::now();
      graph->launch();
      runtime.synchronize();
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / count);
    }
    std::sort(times.begin() + 2, times.end());
    return times[2 + kRuns / 2];
  }
};

void bench_products(const Bench& b, const char* name, int64_t out, int64_t in, int64_t rows, double copy,
                    FusedLinearArgs::Combine combine, Determinism determinism) {
  const int64_t weights = combine == FusedLinearArgs::Combine::kSiluMul ? 2 : 1, bytes = weights * out * in * 2;
  const auto copies = static_cast<int>(std::clamp<int64_t>(kRotation / bytes, 3, 60));
  const Tensor w = b.random({copies * weights * out, in}), x = b.random({rows, in}), norm = b.random({in});
  const Tensor y = b.make(DType::kBF16, {rows, out});
  const OpContext context{.determinism = determinism, .stream = b.runtime.stream()};
  const double seconds = b.time(copies, [&](int i) {
    const TensorView first = w.view().slice(i * weights * out, (i * weights + 1) * out);
    FusedLinearArgs args{.x = x, .norm_weight = norm, .num_products = static_cast<int>(weights), .combine = combine};
    args.products[0] = {.weight = first, .bias = {}, .y = y};
    if (weights == 2) args.products[1].weight = w.view().slice((i * 2 + 1) * out, (i * 2 + 2) * out);
    b.ops.fused_linear(args, context);
  });
  const double flops = 2.0 * static_cast<double>(weights * rows * out * in),
               rate = static_cast<double>(bytes) / seconds;
  std::printf("%-34s rows %5ld  %9.2f us  %7.3f TB/s (%.2f of copy)  %7.1f TFLOP/s\n", name, static_cast<long>(rows),
              seconds * 1e6, rate / 1e12, rate / copy, flops / seconds / 1e12);
}

void run() {
  const Bench b;
  constexpr int64_t kCopied = int64_t{1} << 30;
  const Tensor from = b.make(DType::kU8, {kCopied}), to = b.make(DType::kU8, {kCopied});
  b.runtime.fill_zero(from.data(), kCopied);
  const double copy =
      2.0 * kCopied / b.time(4, [&](int) { b.runtime.copy_on_device(to.data(), from.data(), kCopied); });
  std::printf("copy %.3f TB/s\n", copy / 1e12);
  using Combine = FusedLinearArgs::Combine;
  constexpr auto kFast = Determinism::kFast, kStrict = Determinism::kStrict;
  for (const int64_t rows : {1, 8, 16}) {
    bench_products(b, "head 248320 x 1024", 248320, 1024, rows, copy, Combine::kNone, kFast);
    bench_products(b, "norm, gate and up 3584 x 1024", 3584, 1024, rows, copy, Combine::kSiluMul, kFast);
    bench_products(b, "qkv 6144 x 1024", 6144, 1024, rows, copy, Combine::kNone, kFast);
    bench_products(b, "out 1024 x 2048", 1024, 2048, rows, copy, Combine::kNone, kFast);
    bench_products(b, "down 1024 x 3584", 1024, 3584, rows, copy, Combine::kNone, kFast);
    bench_products(b, "14336 x 4096", 14336, 4096, rows, copy, Combine::kNone, kFast);
  }
  for (const int64_t rows : {32, 16384}) {
    bench_products(b, "gate and up 3584 x 1024", 3584, 1024, rows, copy, Combine::kSiluMul, kFast);
    bench_products(b, "the same, strict", 3584, 1024, rows, copy, Combine::kSiluMul, kStrict);
    bench_products(b, "down 1024 x 3584", 1024, 3584, rows, copy, Combine::kNone, kFast);
    bench_products(b, "the same, strict", 1024, 3584, rows, copy, Combine::kNone, kStrict);
    bench_products(b, "6144 x 1024", 6144, 1024, rows, copy, Combine::kNone, kFast);
  }
}

}  // namespace
}  // namespace headrace

int main() {
  try {
    headrace::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
