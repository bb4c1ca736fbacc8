#include "measured_limits.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "headrace/base/parallel.h"
#include "headrace/base/tensor.h"

namespace headrace::bench {

double median_seconds(int runs, const std::function<void()>& call) {
  call();
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double read_bandwidth(int threads) {
  constexpr int64_t kParts = 64, kWords = int64_t{256} << 20;
  const Tensor memory = Tensor::zeros(DType::kI64, {kWords});
  const auto* const data = memory.data_as<const int64_t>();
  std::vector<int64_t> sums(kParts);
  const double seconds = median_seconds(5, [&] {
    parallel_for(threads, kParts, [&](int64_t part) {
      const int64_t* const from = data + part * (kWords / kParts);
      std::array<int64_t, 16> sum{};
      for (int64_t i = 0; i < kWords / kParts; i += 16) {
        for (size_t j = 0; j < 16; ++j) sum[j] += from[i + static_cast<int64_t>(j)];
      }
      for (const int64_t s : sum) sums[static_cast<size_t>(part)] += s;
    });
  });
  return static_cast<double>(memory.bytes()) / seconds;
}

double read_write_bandwidth(int threads) {
  constexpr int64_t kParts = 64, kFloats = int64_t{512} << 20;
  const Tensor memory = Tensor::zeros(DType::kF32, {kFloats});
  auto* const data = memory.data_as<float>();
  const double seconds = median_seconds(5, [&] {
    parallel_for(threads, kParts, [&](int64_t part) {
      float* const from = data + part * (kFloats / kParts);
      for (int64_t i = 0; i < kFloats / kParts; ++i) from[i] = from[i] * 0.5f + 1.0f;
    });
  });
  return 2.0 * static_cast<double>(memory.bytes()) / seconds;
}

double matrix_rate() {
  using dnnl::memory;
  constexpr int64_t kM = 512, kN = 4096, kK = 4096;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x({kM, kK}, memory::data_type::bf16, memory::format_tag::ab);
  const memory::desc packed({kK, kN}, memory::data_type::bf16, memory::format_tag::any);
  const memory::desc y({kM, kN}, memory::data_type::bf16, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc description({x, packed, y}, engine);
  const dnnl::matmul matmul(description);
  memory weights(description.weights_desc(), engine), input(x, engine), output(y, engine);
  std::fill_n(static_cast<uint16_t*>(input.get_data_handle()), kM * kK, uint16_t{0x3c00});
  std::fill_n(static_cast<uint16_t*>(weights.get_data_handle()), kK * kN, uint16_t{0x3c00});
  const std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, input}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, output}};
  const double seconds = median_seconds(11, [&] {
    matmul.execute(stream, arguments);
    stream.wait();
  });
  return 2.0 * kM * kN * kK / seconds;
}

}  // namespace headrace::bench
