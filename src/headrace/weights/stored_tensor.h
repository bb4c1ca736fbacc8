// One tensor of a checkpoint's files, under the name and with the shape that it has in Hugging Face's checkpoints.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/packed_matrix.h"
#include "headrace/core/tensor.h"

namespace headrace {

// Refers to its file, which outlives it.
struct StoredTensor {
  const std::string* file = nullptr;    // path, for messages
  std::string name;                     // in the file
  std::string_view type;                // as the file spells it: "BF16"
  std::optional<DType> dtype;           // of floats; neither this nor `format`: headrace computes nothing with it
  std::optional<BlockFormat> format;    // of quantised rows
  Shape shape;                          // its last dimension is a row of `data`
  std::span<const unsigned char> data;  // read-only, and not always aligned to the element

  // Changes that make the stored values those of Hugging Face's tensor, or of GGUF's where a file is written.
  std::vector<int32_t> row_order;     // row i is row row_order[i] of `data`; empty: row i
  std::vector<int32_t> column_order;  // unit i of a row is unit column_order[i] of the row in `data`; empty: unit i
  int32_t column_unit = 1;            // columns of a unit
  enum class Values : uint8_t {
    kAsStored,
    kMinusOne,       // w from 1 + w
    kLogOfNegative,  // A_log from -exp(A_log)
    kPlusOne,
    kNegativeExp,  // the inverses
  } values = Values::kAsStored;

  int64_t rows() const { return shape.numel() / columns(); }
  int64_t columns() const { return shape.rank() > 0 ? shape[shape.rank() - 1] : 1; }
  int64_t row_bytes() const;
  int64_t bytes() const;  // of the tensor's rows; of a dtype that headrace does not know, of `data`
  std::span<const unsigned char> row(int64_t i) const {
    const int64_t from = row_order.empty() ? i : row_order[static_cast<size_t>(i)];
    return data.subspan(static_cast<size_t>(from * row_bytes()), static_cast<size_t>(row_bytes()));
  }
};

// Returns rows [first, first + count) of a tensor whose rows have the order of its data, as a matrix.
StoredTensor matrix_of_rows(const StoredTensor& stored, int64_t first, int64_t count);

// Returns true if `data` can be used as they are: aligned floats without a change.
bool is_usable_in_place(const StoredTensor& stored);

// Returns the values in memory of their own: floats in their dtype, blocks as bfloat16. Error kModelFile: a scale of a
// block, or a value, that is no number; kUnsupported: a type that headrace does not compute with.
Tensor read_tensor(const StoredTensor& stored, int threads);

// Decodes row `i` to `values`, which has the tensor's columns. Errors as read_tensor().
void read_row(const StoredTensor& stored, int64_t i, std::vector<float>& values);

// Returns true for a matrix of quantised rows whose columns, if they move, move by whole groups.
bool is_packable(const StoredTensor& stored);

// Owns a packed matrix.
class PackedWeight {
 public:
  PackedWeight(PackedMatrix shape, std::vector<int32_t> column_order);  // contents unspecified
  const PackedMatrix& matrix() const { return matrix_; }
  unsigned char* data() const { return static_cast<unsigned char*>(memory_.data()); }

 private:
  Tensor memory_;
  std::vector<int32_t> column_order_;
  PackedMatrix matrix_;
};

// Packs a matrix of quantised rows. Error kModelFile: a scale of a block is no finite number.
PackedWeight pack(const StoredTensor& stored, int threads);

// Quantises the rows of a matrix of floats and packs them. Error kModelFile, naming file and tensor: a value that the
// format cannot hold.
PackedWeight quantize_and_pack(const StoredTensor& stored, BlockFormat format, int threads);

// Error kModelFile, naming file and tensor, for a value of its row that is no finite number or that blocks and float16
// cannot hold. `type`: of the form to be written.
void require_quantizable(const StoredTensor& stored, std::span<const float> row, std::string_view type);

}  // namespace headrace
