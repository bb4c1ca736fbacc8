#include "headrace/weights/stored_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "headrace/core/block_quantizer.h"
#include "headrace/core/parallel.h"
#include "headrace/core/printable.h"

namespace headrace {
namespace {

void require_finite_scales(const StoredTensor& stored, std::span<const unsigned char> blocks) {
  HR_REQUIRE(!has_broken_scale(*stored.format, blocks), ErrorCode::kModelFile, *stored.file, ": tensor '",
             printable(stored.name), "' has a block with a scale that is no finite number");
}

template <class Number>
void decode_floats(const unsigned char* bytes, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    Number number;
    std::memcpy(&number, bytes + i * sizeof number, sizeof number);
    values[i] = static_cast<float>(number);
  }
}

// Decodes row `i` of the tensor to `values`, columns in the order of the file.
void decode_row(const StoredTensor& stored, int64_t i, std::span<float> values) {
  const std::span<const unsigned char> row = stored.row(i);
  if (stored.format) return dequantize(*stored.format, row, values);
  switch (*stored.dtype) {
    case DType::kF32: return decode_floats<float>(row.data(), values);
    case DType::kBF16: return decode_floats<BF16>(row.data(), values);
    case DType::kF16: return decode_floats<F16>(row.data(), values);
    default: break;
  }
  const auto size = static_cast<size_t>(size_of(*stored.dtype));
  for (size_t c = 0; c < values.size(); ++c) {
    values[c] = static_cast<float>(number_at(row.data() + c * size, *stored.dtype));
  }
}

void reorder_columns(const StoredTensor& stored, std::vector<float>& row) {
  if (stored.column_order.empty()) return;
  const std::vector<float> from = row;
  const auto unit = static_cast<size_t>(stored.column_unit);
  for (size_t i = 0; i < stored.column_order.size(); ++i) {
    std::memcpy(&row[i * unit], &from[static_cast<size_t>(stored.column_order[i]) * unit], unit * sizeof(float));
  }
}

float log_of_negative(const StoredTensor& stored, float value) {
  HR_REQUIRE(value < 0, ErrorCode::kModelFile, *stored.file, ": tensor '", printable(stored.name), "' holds ", value,
             ", expected negative numbers");
  return std::log(-value);
}

void change_values(const StoredTensor& stored, std::vector<float>& row) {
  for (float& value : row) {
    switch (stored.values) {
      case StoredTensor::Values::kAsStored: return;
      case StoredTensor::Values::kMinusOne: value -= 1; break;
      case StoredTensor::Values::kPlusOne: value += 1; break;
      case StoredTensor::Values::kLogOfNegative: value = log_of_negative(stored, value); break;
      case StoredTensor::Values::kNegativeExp: value = -std::exp(value); break;
    }
  }
}

void require_computable(const StoredTensor& stored) {
  HR_REQUIRE(stored.dtype || stored.format, ErrorCode::kUnsupported, *stored.file, ": tensor '", printable(stored.name),
             "' has dtype ", stored.type, ", which is not supported; weights are F32, BF16 or F16");
}

}  // namespace

int64_t StoredTensor::row_bytes() const {
  if (!format) return columns() * size_of(*dtype);
  const BlockLayout& layout = layout_of(*format);
  return columns() / layout.elements * layout.bytes;
}

int64_t StoredTensor::bytes() const {
  return dtype || format ? rows() * row_bytes() : static_cast<int64_t>(data.size());
}

StoredTensor matrix_of_rows(const StoredTensor& stored, int64_t first, int64_t count) {
  StoredTensor part = stored;
  const auto bytes = static_cast<size_t>(stored.row_bytes());
  part.shape = {count, stored.columns()};
  part.data = stored.data.subspan(static_cast<size_t>(first) * bytes, static_cast<size_t>(count) * bytes);
  return part;
}

bool is_usable_in_place(const StoredTensor& stored) {
  return stored.dtype && stored.row_order.empty() && stored.column_order.empty() &&
         stored.values == StoredTensor::Values::kAsStored &&
         reinterpret_cast<uintptr_t>(stored.data.data()) % static_cast<uintptr_t>(size_of(*stored.dtype)) == 0;
}

void read_row(const StoredTensor& stored, int64_t i, std::vector<float>& values) {
  require_computable(stored);
  decode_row(stored, i, values);
  if (stored.format) require_finite_scales(stored, stored.row(i));
  reorder_columns(stored, values);
  change_values(stored, values);
}

Tensor read_tensor(const StoredTensor& stored, int threads) {
  require_computable(stored);
  Tensor copy(stored.dtype.value_or(DType::kBF16), stored.shape);
  const int64_t columns = stored.columns(), size = size_of(copy.dtype());
  auto* const to = static_cast<unsigned char*>(copy.data());
  const bool changes =
      stored.format || !stored.column_order.empty() || stored.values != StoredTensor::Values::kAsStored;
  parallel_for(threads, stored.rows(), [&](int64_t i) {
    unsigned char* const at = to + i * columns * size;
    if (!changes) return static_cast<void>(std::memcpy(at, stored.row(i).data(), static_cast<size_t>(columns * size)));
    std::vector<float> row(static_cast<size_t>(columns));
    read_row(stored, i, row);
    for (int64_t c = 0; c < columns; ++c) set_number(at + c * size, copy.dtype(), row[static_cast<size_t>(c)]);
  });
  return copy;
}

bool is_packable(const StoredTensor& stored) {
  const bool whole_groups = stored.column_order.empty() || stored.column_unit % kGroupColumns == 0;
  return stored.format && stored.shape.rank() == 2 && whole_groups;
}

PackedWeight::PackedWeight(PackedMatrix shape, std::vector<int32_t> column_order)
    : memory_(DType::kU8, {packed_bytes(shape.format, shape.out, shape.in)}),
      column_order_(std::move(column_order)),
      matrix_(shape) {
  matrix_.data = data();
  if (!column_order_.empty()) matrix_.column_order = column_order_.data();
}

namespace {

// Unit i of the tensor is unit order[i] of the file: at which place of the tensor the file's units are.
std::vector<int32_t> places(const std::vector<int32_t>& order) {
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return place;
}

// Rows [begin, end) as they follow one another in the tensor: in the file, or gathered in `scratch`.
std::span<const unsigned char> rows_of(const StoredTensor& stored, int64_t begin, int64_t end,
                                       std::vector<unsigned char>& scratch) {
  const auto bytes = static_cast<size_t>(stored.row_bytes());
  const auto count = static_cast<size_t>(end - begin);
  if (stored.row_order.empty()) return stored.data.subspan(static_cast<size_t>(begin) * bytes, count * bytes);
  scratch.resize(count * bytes);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(&scratch[i * bytes], stored.row(begin + static_cast<int64_t>(i)).data(), bytes);
  }
  return scratch;
}

}  // namespace

namespace {

constexpr int64_t kRowsPerTask = 4 * kPackedRows;

// Calls rows(begin, end, scratch) for all rows of `shape`, in parts, and packs the blocks that it returns.
template <class Rows>
PackedWeight packed_of(const PackedMatrix& shape, std::vector<int32_t> column_order, int threads, const Rows& rows) {
  PackedWeight packed(shape, std::move(column_order));
  parallel_for(threads, (shape.out + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task) {
    const int64_t begin = task * kRowsPerTask, end = std::min(begin + kRowsPerTask, shape.out);
    std::vector<unsigned char> scratch;
    pack_rows(shape, begin, rows(begin, end, scratch), packed.data());
  });
  return packed;
}

}  // namespace

PackedWeight pack(const StoredTensor& stored, int threads) {
  const PackedMatrix shape{.format = *stored.format,
                           .out = stored.rows(),
                           .in = stored.columns(),
                           .column_unit = stored.column_order.empty() ? 0 : stored.column_unit};
  return packed_of(shape, places(stored.column_order), threads,
                   [&](int64_t begin, int64_t end, std::vector<unsigned char>& scratch) {
                     const std::span<const unsigned char> rows = rows_of(stored, begin, end, scratch);
                     require_finite_scales(stored, rows);
                     return rows;
                   });
}

PackedWeight quantize_and_pack(const StoredTensor& stored, BlockFormat format, int threads) {
  const PackedMatrix shape{.format = format, .out = stored.rows(), .in = stored.columns()};
  const BlockLayout& layout = layout_of(format);
  const auto bytes = static_cast<size_t>(shape.in / layout.elements * layout.bytes);
  return packed_of(shape, {}, threads, [&](int64_t begin, int64_t end, std::vector<unsigned char>& scratch) {
    std::vector<float> row(static_cast<size_t>(shape.in));
    scratch.resize(static_cast<size_t>(end - begin) * bytes);
    for (int64_t i = begin; i < end; ++i) {
      read_row(stored, i, row);
      require_quantizable(stored, row, layout.name);
      quantize(format, row, std::span(scratch).subspan(static_cast<size_t>(i - begin) * bytes, bytes));
    }
    return std::span<const unsigned char>(scratch);
  });
}

void require_quantizable(const StoredTensor& stored, std::span<const float> row, std::string_view type) {
  const std::optional<float> refused = unquantizable(row);
  HR_REQUIRE(!refused, ErrorCode::kModelFile, *stored.file, ": tensor '", printable(stored.name), "' holds ", *refused,
             ", which ", type, " cannot");
}

}  // namespace headrace
