#include "headrace/layers/onednn_matmul.h"

#ifndef HEADRACE_ONEDNN
namespace headrace {

// Built without oneDNN, so that Linear runs the kernel set's product: ThreadSanitizer reports races of OpenMP's threads
// that are none, and script/bundle has no room for the library.
bool onednn_supports(const LinearArgs&) { return false; }
void onednn_matmul(const LinearArgs&, const OpContext&) {
  throw Error(ErrorCode::kUnsupported, "linear: oneDNN is not built");
}
void onednn_matmul_widened(const LinearArgs& args, const OpContext& context) { onednn_matmul(args, context); }

}  // namespace headrace
#else
#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>

#include "headrace/base/parallel.h"

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
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(square, square, square), cpu_engine());
    } catch (const dnnl::error&) {
      return false;
    }
    return true;
  }();
  return does;
}

// By the types that oneDNN takes here, on the threads that ThreadCount says.
void multiply(const LinearArgs& a) {
  const int64_t m = a.x.dim(0), k = a.x.dim(1), n = a.weight.dim(0);
  try {
    const Memory::desc x({m, k}, type_of(a.x), Memory::dims{a.x.stride(0), 1});
    const Memory::desc w({k, n}, type_of(a.weight), Memory::dims{1, a.weight.stride(0)});
    const Memory::desc y({m, n}, type_of(a.y), Memory::dims{a.y.stride(0), 1});
    const Memory::desc bias = a.bias ? Memory::desc({1, n}, type_of(a.bias), Memory::dims{n, 1}) : Memory::desc();
    const dnnl::matmul::primitive_desc plan(a.bias ? dnnl::matmul::desc(x, w, bias, y) : dnnl::matmul::desc(x, w, y),
                                            cpu_engine());  // cached by oneDNN
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

// Rows of `from` as those of `to`, in another dtype. Elements of a row lie side by side.
template <class To, class From>
void convert_rows(const TensorView& from, const TensorView& to, int threads) {
  const int64_t columns = from.dim(1);
  parallel_for(threads, from.dim(0), [&](int64_t r) {
    const auto* x = static_cast<const From*>(from.data()) + r * from.stride(0);
    auto* y = static_cast<To*>(to.data()) + r * to.stride(0);
    for (int64_t i = 0; i < columns; ++i) y[i] = static_cast<To>(static_cast<float>(x[i]));
  });
}

Tensor widened(const TensorView& rows, int threads) {
  Tensor wide(DType::kF32, rows.shape());
  convert_rows<float, BF16>(rows, wide, threads);
  return wide;
}

// Some rows of the weights at a time, which the cache still has when they are multiplied.
void multiply_widened(const LinearArgs& a, int threads) {
  constexpr int64_t kOutsAtOnce = 256;
  const Tensor x = widened(a.x, threads);
  const Tensor bias =
      a.bias && a.bias.dtype() == DType::kBF16 ? widened(a.bias.reshape({1, a.bias.dim(0)}), threads) : Tensor();
  for (int64_t begin = 0, end; begin < a.weight.dim(0); begin = end) {
    end = std::min(begin + kOutsAtOnce, a.weight.dim(0));
    const TensorView y = a.y.narrow(1, begin, end), all_biases = bias ? bias.view().select(0) : a.bias;
    const bool narrows = y.dtype() == DType::kBF16;
    const Tensor wide = narrows ? Tensor(DType::kF32, y.shape()) : Tensor();
    const Tensor weight = widened(a.weight.slice(begin, end), threads);
    multiply({.x = x,
              .weight = weight,
              .bias = a.bias ? all_biases.slice(begin, end) : TensorView(),
              .y = narrows ? wide.view() : y});
    if (narrows) convert_rows<BF16, float>(wide, y, threads);
  }
}

}  // namespace

bool onednn_supports(const LinearArgs& a) {
  constexpr int64_t kWidenedRows = 48;  // fewer do not pay for weights that are widened
  const DType type = a.x.dtype();
  if (type == DType::kBF16 && a.x.dim(0) < kWidenedRows && !multiplies_bf16()) return false;
  const bool bias = !a.bias || ((a.bias.dtype() == type || a.bias.dtype() == DType::kF32) && a.bias.stride(0) == 1);
  return bias && (type == DType::kF32 || type == DType::kBF16) && a.weight.dtype() == type &&
         (a.y.dtype() == type || a.y.dtype() == DType::kF32) && a.y.stride(1) == 1;
}

void onednn_matmul(const LinearArgs& a, const OpContext& context) {
  check(a);
  if (a.y.numel() == 0) return;
  if (a.x.dtype() == DType::kBF16 && !multiplies_bf16()) return onednn_matmul_widened(a, context);
  const ThreadCount threads(context.threads);
  multiply(a);
}

void onednn_matmul_widened(const LinearArgs& a, const OpContext& context) {
  check(a);
  if (a.y.numel() == 0) return;
  const ThreadCount threads(context.threads);
  multiply_widened(a, context.threads);
}

}  // namespace headrace
#endif
