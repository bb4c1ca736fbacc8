// Adds numbers to single logits.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// logits[rows[i], ids[i]] += biases[i]. A bias of minus infinity makes the logit minus infinity, unless it is NaN or
// plus infinity. No pair of row and id occurs twice.
struct BiasTokensArgs {
  TensorView logits = {};          // float32 [rows, vocabulary], updated in place
  TensorView rows = {}, ids = {};  // int32 [any number]: in range
  TensorView biases = {};          // float32 [as many]
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const BiasTokensArgs& args);

}  // namespace headrace
