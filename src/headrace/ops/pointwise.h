// Elementwise combinations of two row matrices.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

enum class PointwiseKind : uint8_t {
  kAdd,         // out = x + y
  kSiluMul,     // out = silu(x) * y: the gated MLP
  kSigmoidMul,  // out = sigmoid(x) * y: the attention gate
  kMul,         // out = x * y
  kGeluMul,     // out = gelu(x) * y, by tanh: Gemma's gated MLP
  kSoftCap,     // out = x tanh(y / x): Gemma's cap x of its logits y
  kDivide,      // out = y / x: logits y at a temperature x
};

// Row by row in float32, rounded once to out's dtype. x of shape [tokens, 1] is one factor for each row of y.
// out may be x or y.
struct PointwiseArgs {
  PointwiseKind kind = PointwiseKind::kAdd;
  TensorView x = {};    // [tokens, dim] or [tokens, 1], a float dtype
  TensorView y = {};    // [tokens, dim], a float dtype
  TensorView out = {};  // [tokens, dim], a float dtype
};

// Error kInvalidArgument when shapes or dtypes disagree.
void check(const PointwiseArgs& args);

}  // namespace headrace
