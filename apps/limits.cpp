#include "limits.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "headrace/base/parallel.h"
#include "headrace/base/tensor.h"
#include "headrace/layers/onednn_matmul.h"

namespace headrace::app {
namespace {

constexpr int kPasses = 5;
constexpr int64_t kBlock = int64_t{4} << 20;

uint64_t sum_block(const uint64_t* from, int64_t count) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += from[i + lane];
  }
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

}  // namespace

double median_seconds(int repetitions, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i <= repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    if (i > 0) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(times, times.begin() + static_cast<int64_t>(times.size() / 2));
  return times[times.size() / 2];
}

double read_bandwidth(int threads, int64_t bytes) {
  const Tensor memory = Tensor::zeros(DType::kU8, {bytes});
  volatile uint64_t sink = 0;
  const double seconds = median_seconds(kPasses, [&] {
    parallel_for(threads, bytes / kBlock, [&](int64_t i) {
      sink = sum_block(reinterpret_cast<const uint64_t*>(memory.data_as<uint8_t>() + i * kBlock), kBlock / 8);
    });
  });
  return static_cast<double>(bytes) / seconds;
}

double read_write_bandwidth(int threads, int64_t bytes) {
  const Tensor memory = Tensor::zeros(DType::kU8, {bytes});
  const double seconds = median_seconds(kPasses, [&] {
    parallel_for(threads, bytes / kBlock, [&](int64_t i) {
      auto* words = reinterpret_cast<uint64_t*>(memory.data_as<uint8_t>() + i * kBlock);
      for (int64_t w = 0; w < kBlock / 8; ++w) words[w] += 1;
    });
  });
  return 2 * static_cast<double>(bytes) / seconds;
}

double matmul_rate(int threads) {
  constexpr int64_t kM = 512, kN = 4096, kK = 4096;
  const Tensor x = Tensor::zeros(DType::kBF16, {kM, kK}), w = Tensor::zeros(DType::kBF16, {kN, kK});
  const Tensor y(DType::kBF16, {kM, kN});
  for (int64_t i = 0; i < x.numel(); ++i) x.data_as<BF16>()[i] = BF16(static_cast<float>(i % 17) * 0.1f - 0.8f);
  for (int64_t i = 0; i < w.numel(); ++i) w.data_as<BF16>()[i] = BF16(static_cast<float>(i % 13) * 0.1f - 0.6f);
  const LinearArgs args{.x = x, .weight = w, .y = y};
  if (!onednn_supports(args)) return 0;
  return 2.0 * kM * kN * kK / median_seconds(kPasses, [&] { onednn_matmul(args, {.threads = threads}); });
}

}  // namespace headrace::app
