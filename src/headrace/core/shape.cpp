#include "headrace/core/tensor.h"

#include <ostream>

#include "headrace/core/error.h"

namespace headrace {

Shape::Shape(std::span<const int64_t> dims) {
  HR_REQUIRE(dims.size() <= kMaxRank, ErrorCode::kInvalidArgument, "shape: ", dims.size(), " dimensions, at most ",
             kMaxRank, " are possible");
  for (const int64_t dim : dims) dims_[static_cast<size_t>(rank_++)] = dim;
}

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= (*this)[i];
  return count;
}

void append_to(std::string& out, const Shape& shape) {
  out += '[';
  for (int i = 0; i < shape.rank(); ++i) out += str(i == 0 ? "" : ", ", shape[i]);
  out += ']';
}
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << str(shape); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

}  // namespace headrace
