#include "headrace/layers/onednn_matmul.h"

#ifndef HEADRACE_ONEDNN
namespace headrace {

// Built without oneDNN, so that Linear runs the kernel set's product: ThreadSanitizer reports races of OpenMP's threads
// that are none, and script/bundle has no room for the library.
bool onednn_supports(const LinearArgs&) { return false; }
void onednn_matmul(const LinearArgs&, const OpContext&) {
  throw Error(ErrorCode::kUnsupported, "linear: oneDNN is not built");
}

}  // namespace headrace
#else
#include <omp.h>

#include <dnnl.hpp>

namespace headrace {
namespace {

using Memory = dnnl::memory;

Memory::data_type type_of(const TensorView& x) {
  return x.dtype() == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);  // immutable: a handle of the library's own state
  return engine;
}

// Throws dnnl::error where oneDNN does not multiply these. oneDNN 2 wants them as one description, oneDNN 3 as they
// are.
dnnl::matmul::primitive_desc plan_of(const Memory::desc& x, const Memory::desc& w, const Memory::desc* bias,
                                     const Memory::desc& y) {
#if DNNL_VERSION_MAJOR >= 3
  if (bias != nullptr) return {cpu_engine(), x, w, *bias, y};
  return {cpu_engine(), x, w, y};
#else
  if (bias != nullptr) return {dnnl::matmul::desc(x, w, *bias, y), cpu_engine()};
  return {dnnl::matmul::desc(x, w, y), cpu_engine()};
#endif
}

// oneDNN runs on as many OpenMP threads as the calling thread would start.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;
  ~ThreadCount() { omp_set_num_threads(before_); }

 private:
  int before_;
};

// oneDNN refuses bfloat16 on processors without AVX-512, which it asks itself about.
bool multiplies_bf16() {
  static const bool does = [] {
    const Memory::desc square({16, 16}, Memory::data_type::bf16, Memory::dims{16, 1});
    try {
      plan_of(square, square, nullptr, square);
    } catch (const dnnl::error&) {
      return false;
    }
    return true;
  }();
  return does;
}

}  // namespace

bool onednn_supports(const LinearArgs& a) {
  const DType type = a.x.dtype();
  if (type == DType::kBF16 && !multiplies_bf16()) return false;
  const bool bias = !a.bias || ((a.bias.dtype() == type || a.bias.dtype() == DType::kF32) && a.bias.stride(0) == 1);
  return bias && (type == DType::kF32 || type == DType::kBF16) && a.weight.dtype() == type &&
         (a.y.dtype() == type || a.y.dtype() == DType::kF32) && a.y.stride(1) == 1;
}

void onednn_matmul(const LinearArgs& a, const OpContext& context) {
  check(a);
  if (a.y.numel() == 0) return;
  const ThreadCount threads(context.threads);
  const int64_t m = a.x.dim(0), k = a.x.dim(1), n = a.weight.dim(0);
  try {
    const Memory::desc x({m, k}, type_of(a.x), Memory::dims{a.x.stride(0), 1});
    const Memory::desc w({k, n}, type_of(a.weight), Memory::dims{1, a.weight.stride(0)});
    const Memory::desc y({m, n}, type_of(a.y), Memory::dims{a.y.stride(0), 1});
    const Memory::desc bias = a.bias ? Memory::desc({1, n}, type_of(a.bias), Memory::dims{n, 1}) : Memory::desc();
    const auto plan = plan_of(x, w, a.bias ? &bias : nullptr, y);  // cached by oneDNN
    dnnl::stream stream(cpu_engine());
    dnnl::matmul(plan).execute(stream, {{DNNL_ARG_SRC, Memory(x, cpu_engine(), a.x.data())},
                                        {DNNL_ARG_WEIGHTS, Memory(w, cpu_engine(), a.weight.data())},
                                        {DNNL_ARG_BIAS, a.bias ? Memory(bias, cpu_engine(), a.bias.data()) : Memory()},
                                        {DNNL_ARG_DST, Memory(y, cpu_engine(), a.y.data())}});
    stream.wait();
  } catch (const dnnl::error& e) {
    throw Error(ErrorCode::kInternal, str("linear: oneDNN refused ", m, "x", k, "x", n, ": ", e.what()));
  }
}

}  // namespace headrace
#endif
