// A weight matrix as ops take it: floats, or quantised blocks that are packed for CPU kernels.
#pragma once
#include <cstdint>
#include <optional>

#include "headrace/core/packed_matrix.h"
#include "headrace/core/tensor.h"

namespace headrace {

// A change of a weight W that is applied beside it: y += (x A^T) B^T. Float32.
struct LowRankChange {
  Tensor a;  // [rank, in]
  Tensor b;  // [out, rank], the scale included
};

// [out, in]. Does not own its memory. A tensor is accepted wherever a weight is. An op that has no kernel for packed
// weights reads floats(), which refuses them.
class WeightView {
 public:
  WeightView() = default;
  WeightView(const TensorView& floats) : floats_(floats) {}        // NOLINT(google-explicit-constructor)
  WeightView(const Tensor& floats) : WeightView(floats.view()) {}  // NOLINT(google-explicit-constructor)
  explicit WeightView(const PackedMatrix& packed) : packed_(packed) {}

  explicit operator bool() const { return packed_ || floats_; }
  const PackedMatrix* packed() const { return packed_ ? &*packed_ : nullptr; }  // null: floats
  // The change that layers add to products with packed weights; null: none. Ops do not read it. Not owned.
  const LowRankChange* change() const { return change_; }
  void set_change(const LowRankChange* change) { change_ = change; }
  // Error kUnsupported: the weights are packed.
  const TensorView& floats() const;
  operator const TensorView&() const { return floats(); }  // NOLINT(google-explicit-constructor)

  // Sizes of either kind.
  int rank() const { return packed_ ? 2 : floats_.rank(); }
  int64_t dim(int i) const;
  Shape shape() const { return packed_ ? Shape{packed_->out, packed_->in} : floats_.shape(); }
  int64_t bytes() const;
  Device device() const { return packed_ ? Device{} : floats_.device(); }
  // Rows [begin, end); of packed weights both are multiples of kPackedRows, or `end` is the number of rows. Error
  // kInvalidArgument otherwise.
  WeightView slice(int64_t begin, int64_t end) const;

  // Properties of floats alone. Errors as floats().
  void* data() const { return floats().data(); }
  DType dtype() const { return floats().dtype(); }
  int64_t stride(int i) const { return floats().stride(i); }
  bool is_contiguous() const { return floats().is_contiguous(); }

 private:
  TensorView floats_;
  std::optional<PackedMatrix> packed_;
  const LowRankChange* change_ = nullptr;
};

}  // namespace headrace
