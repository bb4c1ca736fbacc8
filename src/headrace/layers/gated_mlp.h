// down(silu(gate(x)) * up(x)).
#pragma once
#include "headrace/layers/linear.h"

namespace headrace {

// Source: Shazeer 2020, SwiGLU. Callable from any thread.
class GatedMLP {
 public:
  GatedMLP() = default;
  // gate_proj and up_proj [intermediate, hidden], down_proj [hidden, intermediate].
  GatedMLP(const WeightScope& scope, int64_t hidden, int64_t intermediate)
      : GatedMLP(Linear(scope, "gate_proj", intermediate, hidden), Linear(scope, "up_proj", intermediate, hidden),
                 Linear(scope, "down_proj", hidden, intermediate)) {}
  GatedMLP(const Linear& gate, const Linear& up, const Linear& down) : gate_(gate), up_(up), down_(down) {}

  // Writes y [tokens, hidden], any float dtype.
  void forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
    const Tensor gate = gate_(context, x), up = up_(context, x);
    context.ops->pointwise({.kind = PointwiseKind::kSiluMul, .x = gate, .y = up, .out = gate}, context.op);
    down_.forward(context, gate, y);
  }

 private:
  Linear gate_, up_, down_;
};

}  // namespace headrace
