// GEMM with a weight matrix in checkpoint layout, [out, in].
#pragma once
#include "headrace/core/weight_view.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// y = x W^T + bias. M = tokens, K = `in`, N = `out`. Sums are float32. Under kStrict the order of each sum does not
// depend on M.
struct LinearArgs {
  TensorView x = {};       // [tokens, in], a float dtype; rows may be strided
  WeightView weight = {};  // [out, in], a float dtype; rows may be strided; or packed
  TensorView bias = {};    // [out], a float dtype; or null
  TensorView y = {};       // [tokens, out], a float dtype; rows may be strided
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const LinearArgs& args);

}  // namespace headrace
