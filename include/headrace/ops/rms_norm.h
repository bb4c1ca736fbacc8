// Root-mean-square normalisation of rows, plain or gated.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

enum class WeightForm : uint8_t {
  kPlain,    // y = x / rms(x) * w
  kPlusOne,  // y = x / rms(x) * (1 + w): the zero-centred norms of Qwen3-Next and Qwen3.5
};

// rms(x) = sqrt(mean(x^2) + eps) over the last dimension, in float32. out = x / rms(x) * weight, multiplied by
// silu(gate) if there is a gate. Rows may be strided; out may be x.
// Source: Zhang & Sennrich 2019, eq. 4; gated: Yang et al. 2024.
struct RMSNormArgs {
  TensorView x = {};       // [tokens, heads, dim] or [tokens, dim], a float dtype
  TensorView weight = {};  // [dim], any float dtype
  TensorView gate = {};    // shape and dtype of x, or null
  float eps = 1e-6f;
  WeightForm weight_form = WeightForm::kPlain;
  TensorView out = {};  // shape and dtype of x
};

// Gated norm of a layer's output: out = rms_norm(out) * weight * silu(gate), as RMSNormArgs over the last dimension.
struct GatedNorm {
  TensorView gate = {};    // [num_tokens, num_v_heads, head_v_dim], dtype of out; null: no norm
  TensorView weight = {};  // [head_v_dim], any float dtype
  float eps = 1e-6f;
  explicit operator bool() const { return static_cast<bool>(gate); }
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const RMSNormArgs& args);

}  // namespace headrace
