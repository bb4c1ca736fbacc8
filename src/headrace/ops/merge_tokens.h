// Soft embeddings: blends of candidate tokens' embeddings for rows that hold no certain token.
#pragma once
#include "headrace/batch/soft_inputs.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Overwrites the rows of x that merge.mask marks with the blend of table rows that TokenMerge defines. Every id of a
// marked row must be below vocab; only the host can check that.
struct MergeTokensArgs {
  TokenMerge merge;
  TensorView table = {};  // [vocab, hidden], a float dtype
  TensorView x = {};      // [tokens, hidden], a float dtype
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const MergeTokensArgs& args);

}  // namespace headrace
