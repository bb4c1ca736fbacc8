#include "headrace/ops/penalize_tokens.h"

#include "headrace/ops/checks.h"

namespace headrace {
namespace {

void check_ids(std::string_view name, const TensorView& ids, int64_t count) {
  check_shape(name, ids, {count});
  check_dtype(name, ids, DType::kI32);
  HR_REQUIRE(ids.is_contiguous(), ErrorCode::kInvalidArgument, name, " is expected to be dense");
}

}  // namespace

void check(const PenalizeTokensArgs& a) {
  check_rank("penalize_tokens: logits", a.logits, 2);
  check_dtype("penalize_tokens: logits", a.logits, DType::kF32);
  check_rows_contiguous("penalize_tokens: logits", a.logits);
  HR_REQUIRE(a.vocab >= 1 && a.vocab <= a.logits.dim(1), ErrorCode::kInvalidArgument, "penalize_tokens: vocab is ",
             a.vocab, ", expected 1 to ", a.logits.dim(1));
  check_rank("penalize_tokens: seen", a.seen, 2);
  check_dtype("penalize_tokens: seen", a.seen, DType::kI32);
  HR_REQUIRE(a.seen.is_contiguous() && a.seen.dim(1) >= a.words_of(a.vocab), ErrorCode::kInvalidArgument,
             "penalize_tokens: seen is ", a.seen.shape(), ", expected dense rows of ", a.words_of(a.vocab), " or more");
  const int64_t rows = a.logits.dim(0);
  check_ids("penalize_tokens: texts", a.texts, rows);
  check_shape("penalize_tokens: penalties", a.penalties, {rows});
  check_dtype("penalize_tokens: penalties", a.penalties, DType::kF32);
  HR_REQUIRE(a.penalties.is_contiguous(), ErrorCode::kInvalidArgument,
             "penalize_tokens: penalties are expected to be dense");
  if (!a.new_ids) return;
  check_ids("penalize_tokens: new_ids", a.new_ids, a.new_ids.numel());
  check_ids("penalize_tokens: new_texts", a.new_texts, a.new_ids.numel());
}

}  // namespace headrace
