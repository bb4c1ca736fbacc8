#include "headrace/ops/sample_tokens.h"

#include "headrace/ops/checks.h"
#include "headrace/ops/token_confidence.h"

namespace headrace {

void check(const SampleTokensArgs& a) {
  check(TokenConfidenceArgs{a.logits, a.vocab, a.excluded_id, a.best, a.stats});
  const int64_t rows = a.logits.dim(0);
  check_shape("sample_tokens: draws", a.draws, {rows, static_cast<int64_t>(sizeof(TokenDraw))});
  check_dtype("sample_tokens: draws", a.draws, DType::kU8);
  HR_REQUIRE(a.on_host.empty() || static_cast<int64_t>(a.on_host.size()) == rows, ErrorCode::kInvalidArgument,
             "sample_tokens: ", a.on_host.size(), " draws on the host, expected none or ", rows);
  check_shape("sample_tokens: ids", a.ids, {rows});
  check_dtype("sample_tokens: ids", a.ids, DType::kI32);
  check_shape("sample_tokens: chosen", a.chosen, {rows});
  check_dtype("sample_tokens: chosen", a.chosen, DType::kF32);
  HR_REQUIRE(a.draws.is_contiguous() && a.ids.is_contiguous() && a.chosen.is_contiguous(), ErrorCode::kInvalidArgument,
             "sample_tokens: draws, ids and chosen are expected to be dense");
}

}  // namespace headrace
