// Gated MLP: down(act(gate(x)) * up(x)).
#pragma once
#include <utility>

#include "headrace/layers/linear.h"
#include "headrace/layers/rms_norm.h"
#include "headrace/ops/activation.h"

namespace headrace {

// Source: Shazeer 2020, SwiGLU and GEGLU. Callable from any thread.
class GatedMLP {
 public:
  GatedMLP() = default;
  // gate_proj and up_proj [intermediate, hidden], down_proj [hidden, intermediate].
  GatedMLP(const WeightScope& scope, int64_t hidden, int64_t intermediate, Activation activation = Activation::kSilu)
      : GatedMLP(Linear(scope, "gate_proj", intermediate, hidden), Linear(scope, "up_proj", intermediate, hidden),
                 Linear(scope, "down_proj", hidden, intermediate), activation) {}
  GatedMLP(const Linear& gate, const Linear& up, const Linear& down, Activation activation = Activation::kSilu)
      : gate_(gate),
        up_(up),
        down_(down),
        kind_(activation == Activation::kSilu ? PointwiseKind::kSiluMul : PointwiseKind::kGeluMul) {}

  // Writes y [tokens, hidden], any float dtype.
  void forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
    const Tensor inner = activations(context, {.x = x});
    run_gemms(context);
    down_.forward(context, inner, y);
  }
  // x += mlp(norm(x)). The GEMMs may be pending (add_gemm).
  void add_to(const LayerContext& context, const RMSNorm& norm, const TensorView& x) const {
    Tensor inner = activations(context, norm.before_products(x));
    const FusedLinearArgs down{.x = inner, .products = {down_.product(x)}, .residual = x};
    add_gemm(context, down, std::move(inner));
  }

  const Linear& gate() const { return gate_; }
  const Linear& up() const { return up_; }
  const Linear& down() const { return down_; }

 private:
  Tensor activations(const LayerContext& context, FusedLinearArgs args) const {
    Tensor out = context.make({args.x.dim(0), gate_.out_features()});
    const bool silu = kind_ == PointwiseKind::kSiluMul;  // only SwiGLU is fused
    const Tensor up = silu ? Tensor() : context.make(out.shape());
    args.products = {gate_.product(out), up_.product(up)};
    args.num_products = 2;
    if (silu) args.combine = FusedLinearArgs::Combine::kSiluMul;
    add_gemm(context, args);
    if (silu) return out;
    run_gemms(context);
    context.ops->pointwise({.kind = kind_, .x = out, .y = up, .out = out}, context.op);
    return out;
  }

  Linear gate_, up_, down_;
  PointwiseKind kind_ = PointwiseKind::kSiluMul;
};

}  // namespace headrace
