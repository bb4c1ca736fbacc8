#include "headrace/ops/merge_tokens.h"

#include "headrace/core/error.h"

namespace headrace {

void check(const MergeTokensArgs& a) {
  const TokenMerge& m = a.merge;
  const int64_t tokens = a.x.dim(0);
  const auto require = [](const TensorView& view, DType dtype, const Shape& shape, const char* name) {
    HR_REQUIRE(view.dtype() == dtype && view.shape() == shape, ErrorCode::kInvalidArgument, "token merge: ", name,
               " is ", name_of(view.dtype()), " ", view.shape(), ", expected ", name_of(dtype), " ", shape);
  };
  require(m.mask, DType::kU8, {tokens}, "mask");
  HR_REQUIRE(m.ids.rank() == 2, ErrorCode::kInvalidArgument, "token merge: ids have ", m.ids.rank(),
             " dimensions, expected 2");
  require(m.ids, DType::kI64, {tokens, m.ids.dim(1)}, "ids");
  require(m.probs, DType::kF32, {tokens, m.ids.dim(1)}, "probs");
  require(m.residual, DType::kF32, {tokens}, "residual");
  HR_REQUIRE(a.table.dim(1) == a.x.dim(1), ErrorCode::kInvalidArgument, "token merge: the table is ", a.table.dim(1),
             " wide, expected ", a.x.dim(1));
}

}  // namespace headrace
