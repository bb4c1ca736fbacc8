// Mixture-of-experts MLP: the gated MLPs of the chosen experts and their weighted sum.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/activation.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// y[t] = residual[t] + sum_j weights[t, j] * down_e(act(gate_e(x[t])) * up_e(x[t])), e = experts[t, j], added in the
// order of j. The input and output of down are rounded to x's dtype; all sums are float32. Under kStrict a token's bits
// do not depend on the other tokens.
struct ExpertMLPArgs {
  TensorView x = {};        // [tokens, hidden], a float dtype; rows may be strided
  TensorView experts = {};  // int32 [tokens, k], below num_experts, or kNoExpert: contributes nothing
  TensorView weights = {};  // float32 [tokens, k]
  // int64 [num_experts, 3]: addresses of each expert's gate and up [intermediate, hidden] and down [hidden,
  // intermediate]. The matrices are dense, aligned to 16 bytes, of dtype weight_type and in the memory of x's device.
  TensorView addresses = {};
  DType weight_type = DType::kF32;
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  TensorView residual = {};  // [tokens, hidden], y's dtype, dense; null: nothing is added. May be y
  TensorView y = {};         // [tokens, hidden], x's dtype or float32, dense
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const ExpertMLPArgs& args);

}  // namespace headrace
