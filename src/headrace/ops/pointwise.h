// Elementwise combinations of two matrices.
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
  kSoftCap,     // out = x tanh(y / x): soft cap x of logits y (Gemma)
  kDivide,      // out = y / x: logits y divided by a temperature x
};

// Computes in float32 and rounds once to out's dtype. x of shape [tokens, 1] broadcasts one factor over each row of y.
// out may be x or y.
struct PointwiseArgs {
  PointwiseKind kind = PointwiseKind::kAdd;
  TensorView x = {};    // [tokens, dim] or [tokens, 1], a float dtype
  TensorView y = {};    // [tokens, dim], a float dtype
  TensorView out = {};  // [tokens, dim], a float dtype
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const PointwiseArgs& args);

}  // namespace headrace
