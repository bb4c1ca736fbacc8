// The likeliest tokens of rows of logits.
#pragma once
#include <optional>

#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// For each i, writes the `ids.dim(1)` largest logits of logits[rows[i]] over the ids [0, vocab) without excluded_id,
// and their ids, descending; for equal logits the lower id first. If there are fewer such ids, the rest has id -1 and
// a logit of minus infinity. Rows with NaN have any of their ids, each once.
struct TopTokensArgs {
  static constexpr int64_t kMostTokens = 128;

  TensorView logits = {};  // float32 [rows, at least vocab]
  int32_t vocab = 0;
  std::optional<int32_t> excluded_id = {};
  TensorView rows = {};  // int32 [count]: in range; a row may occur several times
  TensorView ids = {};   // int32 [count, 1 to kMostTokens]
  TensorView top = {};   // float32 [as ids]
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const TopTokensArgs& args);

}  // namespace headrace
