// Fused GEMMs of one input, with the norm before and the activation or residual after them.
#pragma once
#include <array>

#include "headrace/core/weight_view.h"
#include "headrace/ops/op_context.h"
#include "headrace/ops/rms_norm.h"

namespace headrace {

// n = rms_norm(x), or x itself; products[i].y = n W_i^T + bias_i for i < num_products. M = tokens, K = `in`, N = `out`.
// Sums are float32. Under kStrict a row's bits do not depend on the other rows.
struct FusedLinearArgs {
  TensorView x = {};            // [tokens, in], a float dtype; rows may be strided
  TensorView norm_weight = {};  // [in], or null: no norm. The normalised row is rounded to x's dtype
  float eps = 1e-6f;
  WeightForm norm_form = WeightForm::kPlain;
  struct Product {
    WeightView weight = {};
    TensorView bias = {}, y = {};  // as LinearArgs
  };
  static constexpr int kMaxProducts = 4;
  std::array<Product, kMaxProducts> products;
  int num_products = 1;
  enum class Combine : uint8_t {
    kNone,
    kSiluMul,  // SwiGLU of two GEMMs of one shape: products[0].y = silu(first) * second; products[1].y is null
  } combine = Combine::kNone;
  TensorView residual = {};  // [tokens, out] or null: added to the result of a single GEMM; may be its y
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const FusedLinearArgs& args);

}  // namespace headrace
