#include "bench/measured_limits.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "headrace/base/parallel.h"
#include "headrace/base/tensor.h"

#ifdef HEADRACE_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#endif

namespace headrace::bench {
namespace {

constexpr int64_t kParts = 64;

}  // namespace

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

double read_bandwidth(int threads, int64_t bytes) {
  const int64_t words = bytes / 8 / kParts / 16 * 16;  // of one part
  const Tensor memory(DType::kI64, {kParts * words});
  auto* const data = memory.data_as<int64_t>();
  // Memory that was never written is one page of zeros, again and again, which caches answer for.
  parallel_for(threads, kParts, [&](int64_t part) { std::fill_n(data + part * words, words, part); });
  std::vector<int64_t> sums(kParts);
  const double seconds = median_seconds(5, [&] {
    parallel_for(threads, kParts, [&](int64_t part) {
      const int64_t* const from = data + part * words;
      std::array<int64_t, 16> sum{};
      for (int64_t i = 0; i < words; i += 16) {
        for (size_t j = 0; j < 16; ++j) sum[j] += from[i + static_cast<int64_t>(j)];
      }
      for (const int64_t s : sum) sums[static_cast<size_t>(part)] += s;
    });
  });
  return static_cast<double>(memory.bytes()) / seconds;
}

double read_write_bandwidth(int threads, int64_t bytes) {
  const int64_t floats = bytes / 4 / kParts;  // of one part
  const Tensor memory = Tensor::zeros(DType::kF32, {kParts * floats});
  auto* const data = memory.data_as<float>();
  const double seconds = median_seconds(5, [&] {
    parallel_for(threads, kParts, [&](int64_t part) {
      float* const from = data + part * floats;
      for (int64_t i = 0; i < floats; ++i) from[i] = from[i] * 0.5f + 1.0f;
    });
  });
  return 2.0 * static_cast<double>(memory.bytes()) / seconds;
}

#ifdef HEADRACE_ONEDNN
std::optional<double> matrix_rate(int threads) try {
  using dnnl::memory;
  constexpr int64_t kM = 512, kN = 4096, kK = 4096;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x({kM, kK}, memory::data_type::bf16, memory::format_tag::ab);
  const memory::desc packed({kK, kN}, memory::data_type::bf16, memory::format_tag::any);
  const memory::desc y({kM, kN}, memory::data_type::bf16, memory::format_tag::ab);
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);  // a primitive is planned for the threads of this moment
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, x, packed, y);
#else
  const dnnl::matmul::primitive_desc description({x, packed, y}, engine);
#endif
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
  omp_set_num_threads(before);
  return 2.0 * kM * kN * kK / seconds;
} catch (const dnnl::error&) {
  return std::nullopt;  // a processor without bf16 products
}
std::string_view why_no_matrix_rate() { return "oneDNN does not multiply bf16 here"; }
#else
std::optional<double> matrix_rate(int) { return std::nullopt; }
std::string_view why_no_matrix_rate() { return "oneDNN, whose speed this would be, is not built in"; }
#endif

}  // namespace headrace::bench
