// Soft tokens: the embedding of a row that does not hold one token for certain.
#pragma once
#include "headrace/batch/token_merge.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Overwrites the flagged rows of x with their blend of rows of the table, as TokenMerge says. Every id of a flagged row
// is below vocab: only the host can check that.
struct MergeTokensArgs {
  TokenMerge merge;
  TensorView table = {};  // [vocab, hidden], a float dtype
  TensorView x = {};      // [tokens, hidden], a float dtype
};

// Error kInvalidArgument for shapes and dtypes that do not fit.
void check(const MergeTokensArgs& args);

}  // namespace headrace
