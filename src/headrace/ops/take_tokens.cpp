#include "headrace/ops/take_tokens.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const TakeTokensArgs& a) {
  check_rank("take_tokens: ids", a.ids, 1);
  check_dense("take_tokens: ids", a.ids, DType::kI32, a.ids.shape());
  check_dense("take_tokens: from", a.from, DType::kI32, a.ids.shape());
  check_rank("take_tokens: tokens", a.tokens, 1);
  check_dense("take_tokens: tokens", a.tokens, DType::kI32, a.tokens.shape());
}

}  // namespace headrace
