// A matrix product with weights as checkpoints store them.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// y = x W^T + bias, sums in float32. Under kStrict the order of each sum does not depend on the number of rows.
struct LinearArgs {
  TensorView x = {};       // [tokens, in], a float dtype; rows may be strided
  TensorView weight = {};  // [out, in], a float dtype; rows may be strided
  TensorView bias = {};    // [out], a float dtype; or null
  TensorView y = {};       // [tokens, out], a float dtype; rows may be strided
};

// Error kInvalidArgument when shapes or dtypes disagree.
void check(const LinearArgs& args);

}  // namespace headrace
