#include "bench/measured_limits.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "headrace/core/parallel.h"
#include "headrace/core/tensor.h"

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

namespace {

// `kAhead`: words between a load and the prefetch beside it; none if 0.
template <int64_t kAhead>
double bandwidth_of_reading(int threads, int64_t bytes) {
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
        if constexpr (kAhead != 0) {
          __builtin_prefetch(from + i + kAhead, 0, 2);
          __builtin_prefetch(from + i + kAhead + 8, 0, 2);
        }
        for (size_t j = 0; j < 16; ++j) sum[j] += from[i + static_cast<int64_t>(j)];
      }
      for (const int64_t s : sum) sums[static_cast<size_t>(part)] += s;
    });
  });
  return static_cast<double>(memory.bytes()) / seconds;
}

}  // namespace

double read_bandwidth(int threads, int64_t bytes) { return bandwidth_of_reading<0>(threads, bytes); }

double prefetched_read_bandwidth(int threads, int64_t bytes) {
  constexpr int64_t kAhead = 256;  // 2 KB: more is no faster
  return bandwidth_of_reading<kAhead>(threads, bytes);
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
// A bf16 GEMM in slices of columns. parallel_for starts the threads, and oneDNN none.
class SlicedMatmul {
 public:
  static constexpr int64_t kM = 512, kN = 4096, kK = 4096, kColumns = 128, kSlices = kN / kColumns;

  SlicedMatmul() : engine_(dnnl::engine::kind::cpu, 0) {
    const auto bf16 = Memory::data_type::bf16;
    const Memory::desc x({kM, kK}, bf16, Memory::format_tag::ab), packed({kK, kColumns}, bf16, Memory::format_tag::any);
    const Memory::desc y({kM, kColumns}, bf16, Memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // or all threads would share one
    omp_set_num_threads(1);  // a primitive is planned for the threads of this moment
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine_, x, packed, y, attributes);
#else
    const dnnl::matmul::primitive_desc description({x, packed, y}, attributes, engine_);
#endif
    matmul_ = dnnl::matmul(description);
    const Memory input = filled(x, kM * kK);
    for (int64_t slice = 0; slice < kSlices; ++slice) {
      slices_.push_back({{DNNL_ARG_SRC, input},
                         {DNNL_ARG_WEIGHTS, filled(description.weights_desc(), kK * kColumns)},
                         {DNNL_ARG_DST, Memory(y, engine_)},
                         {DNNL_ARG_SCRATCHPAD, Memory(description.scratchpad_desc(), engine_)}});
    }
  }

  void run(int64_t slice) const {
    omp_set_num_threads(1);
    dnnl::stream stream(engine_);
    matmul_.execute(stream, slices_[static_cast<size_t>(slice)]);
    stream.wait();
  }

 private:
  using Memory = dnnl::memory;

  Memory filled(const Memory::desc& desc, int64_t numbers) const {
    Memory memory(desc, engine_);
    std::fill_n(static_cast<uint16_t*>(memory.get_data_handle()), numbers, uint16_t{0x3c00});
    return memory;
  }

  dnnl::engine engine_;
  dnnl::matmul matmul_;
  std::vector<std::unordered_map<int, Memory>> slices_;
};

std::optional<double> matrix_rate(int threads) try {
  using M = SlicedMatmul;
  const M matmul;
  const double seconds =
      median_seconds(11, [&] { parallel_for(threads, M::kSlices, [&](int64_t slice) { matmul.run(slice); }); });
  return 2.0 * M::kM * M::kN * M::kK / seconds;
} catch (const dnnl::error&) {
  return std::nullopt;  // a processor without bf16 products
}
std::string_view why_no_matrix_rate() { return "oneDNN does not multiply bf16 here"; }
#else
std::optional<double> matrix_rate(int) { return std::nullopt; }
std::string_view why_no_matrix_rate() { return "oneDNN, whose speed this would be, is not built in"; }
#endif

}  // namespace headrace::bench
