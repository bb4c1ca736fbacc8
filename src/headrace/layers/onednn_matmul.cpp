#include "headrace/layers/onednn_matmul.h"

#ifndef HEADRACE_ONEDNN
namespace headrace {

// Stub without oneDNN: Linear then runs the ops' GEMM. ThreadSanitizer does not see into oneDNN, and script/bundle has
// no room for it.
bool onednn_supports(const LinearArgs&) { return false; }
void onednn_matmul(const LinearArgs&, const OpContext&) {
  throw Error(ErrorCode::kUnsupported, "linear: oneDNN is not built");
}

}  // namespace headrace
#else
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <dnnl.hpp>

#include "headrace/core/parallel.h"

namespace headrace {
namespace {

using Memory = dnnl::memory;

Memory::data_type type_of(const TensorView& x) {
  return x.dtype() == DType::kBF16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);  // immutable: a handle to the library's state
  return engine;
}

// Throws dnnl::error if oneDNN does not support the operands. oneDNN 2 takes one description, oneDNN 3 the operands.
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

// While alive, oneDNN runs in the calling thread only: its own threads would compete with those of parallel_for.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { omp_set_num_threads(before_); }

 private:
  int before_;
};

// oneDNN refuses bfloat16 on CPUs without AVX-512, which it detects itself.
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

// Runs in the calling thread.
void multiply(const LinearArgs& a) {
  const OneThread alone;
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

// As multiply. oneDNN is slower with strided rows of y, so it writes a dense tile, which is copied.
void multiply_tile(const LinearArgs& tile) {
  if (tile.y.is_contiguous()) return multiply(tile);
  const Tensor dense(tile.y.dtype(), tile.y.shape());
  multiply({.x = tile.x, .weight = tile.weight, .bias = tile.bias, .y = dense});
  const auto row_bytes = static_cast<size_t>(dense.bytes() / dense.dim(0));
  for (int64_t row = 0; row < dense.dim(0); ++row)
    std::memcpy(tile.y.select(row).data(), dense.view().select(row).data(), row_bytes);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The tiles of a result. They depend on its shape alone, since the order of sums depends on a tile's shape. Many rows
// of few columns are not split by columns; otherwise the number of tiles is even, for two threads.
struct Tiles {
  static constexpr int64_t kRows = 128, kWholeColumns = 1024, kLanes = 16;

  Tiles(int64_t all_rows, int64_t all_columns)
      : rows(ceil_div(all_rows, ceil_div(all_rows, kRows))), columns(all_columns), down(ceil_div(all_rows, rows)) {
    if (down >= 4 && all_columns <= kWholeColumns) return;
    columns = ceil_div(ceil_div(all_columns, 2 * ceil_div(all_columns, kWholeColumns)), kLanes) * kLanes;
    across = ceil_div(all_columns, columns);
  }

  int64_t rows, columns;         // of a tile; the last ones may be smaller
  int64_t down = 1, across = 1;  // number of tiles
};

}  // namespace

bool onednn_supports(const LinearArgs& a) {
  const DType type = a.x.dtype();
  if (type == DType::kBF16 && !multiplies_bf16()) return false;
  const bool bias = !a.bias || ((a.bias.dtype() == type || a.bias.dtype() == DType::kF32) && a.bias.stride(0) == 1);
  return bias && (type == DType::kF32 || type == DType::kBF16) && a.weight.dtype() == type &&
         (a.y.dtype() == type || a.y.dtype() == DType::kF32) && a.y.stride(1) == 1;
}

// oneDNN packs the weights of every tile again, so N is split first and M only for many rows.
void onednn_matmul(const LinearArgs& a, const OpContext& context) {
  check(a);
  if (a.y.numel() == 0) return;
  const int64_t rows = a.x.dim(0), columns = a.weight.dim(0);
  const Tiles tiles(rows, columns);
  parallel_for(context.threads, tiles.down * tiles.across, [&](int64_t tile) {
    const int64_t row = tile % tiles.down * tiles.rows, row_end = std::min(row + tiles.rows, rows);
    const int64_t column = tile / tiles.down * tiles.columns, column_end = std::min(column + tiles.columns, columns);
    multiply_tile({.x = a.x.slice(row, row_end),
                   .weight = a.weight.slice(column, column_end),
                   .bias = a.bias ? a.bias.slice(column, column_end) : TensorView(),
                   .y = a.y.slice(row, row_end).narrow(1, column, column_end)});
  });
}

}  // namespace headrace
#endif
