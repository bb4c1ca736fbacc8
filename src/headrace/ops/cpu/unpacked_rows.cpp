#include "headrace/ops/cpu/unpacked_rows.h"

#include <algorithm>
#include <span>
#include <vector>

#include "headrace/core/parallel.h"

namespace headrace::cpu {
namespace {

constexpr int64_t kRowsAtATime = 256;  // of weights: they stay in a cache until the kernel has read them

// The matrix's row with its columns in the order of x.
void unpack_in_order_of_x(const PackedMatrix& matrix, int64_t row, std::span<float> to) {
  if (matrix.column_order == nullptr) return unpack_row(matrix, row, to);
  std::vector<float> values(to.size());
  unpack_row(matrix, row, values);
  for (int64_t unit = 0; unit * matrix.column_unit < matrix.in; ++unit) {
    std::copy_n(values.data() + unit * matrix.column_unit, matrix.column_unit,
                to.data() + matrix.column_order[unit] * matrix.column_unit);
  }
}

}  // namespace

void linear_of_unpacked(const LinearArgs& args, const OpContext& context, void (*kernel)(const LinearParams&)) {
  const PackedMatrix& matrix = *args.weight.packed();
  const Tensor rows(DType::kF32, {std::min(matrix.out, kRowsAtATime), matrix.in});
  for (int64_t first = 0; first < matrix.out; first += kRowsAtATime) {
    const int64_t end = std::min(matrix.out, first + kRowsAtATime);
    parallel_for(context.threads, end - first, [&](int64_t row) {
      unpack_in_order_of_x(matrix, first + row,
                           {rows.data_as<float>() + row * matrix.in, static_cast<size_t>(matrix.in)});
    });
    const LinearArgs part{.x = args.x,
                          .weight = rows.view().slice(0, end - first),
                          .bias = args.bias ? args.bias.slice(first, end) : TensorView(),
                          .y = args.y.narrow(1, first, end)};
    kernel(params_of(part, context));
  }
}

void embedding_of_packed(const EmbeddingArgs& args, const OpContext& context) {
  const PackedMatrix& table = *args.table.packed();
  const auto* const ids = static_cast<const int32_t*>(args.ids.data());
  parallel_for(context.threads, args.ids.dim(0), [&](int64_t token) {
    std::vector<float> row(static_cast<size_t>(table.in));
    unpack_row(table, ids[token], row);
    const TensorView out = args.out.select(token);
    for (int64_t i = 0; i < table.in; ++i) set_element(out, i, row[static_cast<size_t>(i)]);
  });
}

}  // namespace headrace::cpu
