#include "headrace/core/weight_view.h"

#include "headrace/core/error.h"

namespace headrace {

const TensorView& WeightView::floats() const {
  HR_REQUIRE(!packed_, ErrorCode::kUnsupported, "weights packed in ", layout_of(packed_->format).name,
             ": this op has no kernel for them");
  return floats_;
}

int64_t WeightView::dim(int i) const {
  if (!packed_) return floats_.dim(i);
  return i == 0 ? packed_->out : packed_->in;
}

int64_t WeightView::bytes() const {
  return packed_ ? packed_bytes(packed_->format, packed_->out, packed_->in) : floats_.bytes();
}

WeightView WeightView::slice(int64_t begin, int64_t end) const {
  if (!packed_) return floats_.slice(begin, end);
  HR_REQUIRE(begin >= 0 && begin <= end && end <= packed_->out && begin % kPackedRows == 0 &&
                 (end % kPackedRows == 0 || end == packed_->out),
             ErrorCode::kInvalidArgument, "packed weights: rows [", begin, ", ", end, ") of ", packed_->out,
             ", expected multiples of ", kPackedRows);
  HR_REQUIRE(change_ == nullptr, ErrorCode::kUnsupported, "packed weights with an adapter have no rows of their own");
  PackedMatrix part = *packed_;
  part.out = end - begin;
  part.data += packed_bytes(part.format, begin, part.in);
  return WeightView(part);
}

}  // namespace headrace
