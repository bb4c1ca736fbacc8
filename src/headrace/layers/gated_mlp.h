// down(act(gate(x)) * up(x)).
#pragma once
#include "headrace/layers/linear.h"

namespace headrace {

enum class Activation : uint8_t { kSilu, kGelu };  // gelu by tanh: Gemma

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
    const Tensor gate = gate_(context, x), up = up_(context, x);
    context.ops->pointwise({.kind = kind_, .x = gate, .y = up, .out = gate}, context.op);
    down_.forward(context, gate, y);
  }

 private:
  Linear gate_, up_, down_;
  PointwiseKind kind_ = PointwiseKind::kSiluMul;
};

}  // namespace headrace
