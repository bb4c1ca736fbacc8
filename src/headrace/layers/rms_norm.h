// RMS norm with a checkpoint's weight.
#pragma once
#include "headrace/layers/layer_context.h"
#include "headrace/weights/weight_scope.h"

namespace headrace {

// Does not own its weight. Callable from any thread.
class RMSNorm {
 public:
  RMSNorm() = default;
  // Uses "<name>.weight" [dim]. Errors as Checkpoint::tensor.
  RMSNorm(const WeightScope& scope, std::string_view name, int64_t dim, float eps, WeightForm form)
      : weight_(scope.scope(name).tensor("weight", {dim}, {.mean = form == WeightForm::kPlain ? 1.0 : 0.0})),
        eps_(eps),
        form_(form) {}

  // Uses a weight [dim] that is not a tensor of the checkpoint; not owned.
  RMSNorm(const TensorView& weight, float eps) : weight_(weight), eps_(eps) {}

  // Writes out, which may be x, from x [..., dim]. `gate`, if not null, multiplies by silu(gate) after the norm.
  void forward(const LayerContext& context, const TensorView& x, const TensorView& out,
               const TensorView& gate = {}) const {
    context.ops->rms_norm({.x = x, .weight = weight_, .gate = gate, .eps = eps_, .weight_form = form_, .out = out},
                          context.op);
  }
  const TensorView& weight() const { return weight_; }
  // Returns fused GEMM arguments whose input is the norm of x; the caller adds the weights.
  FusedLinearArgs before_products(const TensorView& x) const {
    return {.x = x, .norm_weight = weight_, .eps = eps_, .norm_form = form_};
  }
  Tensor operator()(const LayerContext& context, const TensorView& x) const {
    Tensor out = context.make(x.shape());
    forward(context, x, out);
    return out;
  }

 private:
  TensorView weight_;  // not owned
  float eps_ = 1e-6f;
  WeightForm form_ = WeightForm::kPlain;
};

}  // namespace headrace
