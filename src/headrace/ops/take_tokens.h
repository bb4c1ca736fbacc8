// Fills input ids from tokens that another step has chosen.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// ids[i] = tokens[from[i]] where from[i] is not negative; the others keep theirs.
struct TakeTokensArgs {
  TensorView ids = {};     // int32 [n], updated in place
  TensorView tokens = {};  // int32 [any number]
  TensorView from = {};    // int32 [n]: negative, or an index of tokens
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const TakeTokensArgs& args);

}  // namespace headrace
