#include "headrace/core/workspace.h"

namespace headrace {

TensorView Workspace::take(DType dtype, const Shape& shape) {
  constexpr int64_t kAlign = 64;
  const int64_t bytes = (shape.numel() * size_of(dtype) + kAlign - 1) / kAlign * kAlign;
  HR_REQUIRE(used_ + bytes <= capacity(), ErrorCode::kInternal, "workspace: ", used_ + bytes, " bytes are needed, ",
             capacity(), " were reserved");
  char* at = static_cast<char*>(memory_.data()) + used_;
  used_ += bytes;
  return {at, dtype, shape, memory_.view().device()};
}

}  // namespace headrace
