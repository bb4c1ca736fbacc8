#include "headrace/ops/mask_tokens.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const MaskTokensArgs& a) {
  check_rank("mask_tokens: logits", a.logits, 2);
  check_dtype("mask_tokens: logits", a.logits, DType::kF32);
  check_rows_contiguous("mask_tokens: logits", a.logits);
  HR_REQUIRE(a.vocab >= 1 && a.vocab <= a.logits.dim(1), ErrorCode::kInvalidArgument, "mask_tokens: vocab is ", a.vocab,
             ", expected 1 to ", a.logits.dim(1));
  check_rank("mask_tokens: bits", a.bits, 2);
  check_dense("mask_tokens: bits", a.bits, DType::kI32, a.bits.shape());
  HR_REQUIRE(a.bits.dim(1) >= a.words_of(a.vocab), ErrorCode::kInvalidArgument, "mask_tokens: bits is ", a.bits.shape(),
             ", expected rows of ", a.words_of(a.vocab), " or more");
  check_dense("mask_tokens: rows", a.rows, DType::kI32, {a.bits.dim(0)});
}

}  // namespace headrace
