#include "headrace/ops/top_tokens.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const TopTokensArgs& a) {
  check_rank("top_tokens: logits", a.logits, 2);
  check_dtype("top_tokens: logits", a.logits, DType::kF32);
  check_rows_contiguous("top_tokens: logits", a.logits);
  HR_REQUIRE(a.vocab >= 1 && a.vocab <= a.logits.dim(1), ErrorCode::kInvalidArgument, "top_tokens: vocab is ", a.vocab,
             ", expected 1 to ", a.logits.dim(1));
  check_rank("top_tokens: ids", a.ids, 2);
  check_dense("top_tokens: ids", a.ids, DType::kI32, a.ids.shape());
  HR_REQUIRE(a.ids.dim(1) >= 1 && a.ids.dim(1) <= a.kMostTokens, ErrorCode::kInvalidArgument, "top_tokens: ids is ",
             a.ids.shape(), ", expected rows of 1 to ", a.kMostTokens);
  check_dense("top_tokens: top", a.top, DType::kF32, a.ids.shape());
  check_dense("top_tokens: rows", a.rows, DType::kI32, {a.ids.dim(0)});
}

}  // namespace headrace
