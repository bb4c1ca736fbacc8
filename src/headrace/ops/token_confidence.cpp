#include "headrace/ops/token_confidence.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const TokenConfidenceArgs& a) {
  check_rank("token_confidence: logits", a.logits, 2);
  check_dtype("token_confidence: logits", a.logits, DType::kF32);
  check_rows_contiguous("token_confidence: logits", a.logits);
  const int32_t least = a.excluded_id.value_or(a.vocab) < a.vocab ? 2 : 1;
  HR_REQUIRE(a.vocab >= least && a.vocab <= a.logits.dim(1), ErrorCode::kInvalidArgument, "token_confidence: vocab is ",
             a.vocab, ", expected ", least, " to ", a.logits.dim(1));
  HR_REQUIRE(!a.excluded_id || (*a.excluded_id >= 0 && *a.excluded_id < a.logits.dim(1)), ErrorCode::kInvalidArgument,
             "token_confidence: excluded_id is ", a.excluded_id.value_or(0), ", expected 0 to ", a.logits.dim(1) - 1);
  check_shape("token_confidence: best", a.best, {a.logits.dim(0)});
  check_dtype("token_confidence: best", a.best, DType::kI32);
  check_shape("token_confidence: stats", a.stats, {a.logits.dim(0), 4});
  check_dtype("token_confidence: stats", a.stats, DType::kF32);
  check_rows_contiguous("token_confidence: stats", a.stats);
}

}  // namespace headrace
