#include "headrace/ops/bias_tokens.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const BiasTokensArgs& a) {
  check_rank("bias_tokens: logits", a.logits, 2);
  check_dtype("bias_tokens: logits", a.logits, DType::kF32);
  check_rows_contiguous("bias_tokens: logits", a.logits);
  check_rank("bias_tokens: ids", a.ids, 1);
  const int64_t count = a.ids.dim(0);
  check_dense("bias_tokens: ids", a.ids, DType::kI32, {count});
  check_dense("bias_tokens: rows", a.rows, DType::kI32, {count});
  check_dense("bias_tokens: biases", a.biases, DType::kF32, {count});
}

}  // namespace headrace
