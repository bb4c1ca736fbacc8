// y = x W^T (+ b) with the weights of a checkpoint, used where they lie.
#pragma once
#include <span>
#include <string_view>

#include "headrace/layers/layer_context.h"
#include "headrace/weights/weight_scope.h"

namespace headrace {

enum class HasBias : uint8_t { kNo, kYes };

// Refers to weights that somebody else owns (the checkpoint, or a tensor of the model). Callable from any thread.
class Linear {
 public:
  Linear() = default;
  Linear(const TensorView& weight, const TensorView& bias) : weight_(weight), bias_(bias) {}
  // "<name>.weight" [out, in] and, when asked for, "<name>.bias" [out]. Errors as Checkpoint::tensor.
  Linear(const WeightScope& scope, std::string_view name, int64_t out, int64_t in, HasBias bias = HasBias::kNo);

  const TensorView& weight() const { return weight_; }
  int64_t out_features() const { return weight_.dim(0); }
  // Writes y [tokens, out], any float dtype, from x [tokens, in].
  void forward(const LayerContext& context, const TensorView& x, const TensorView& y) const;
  // As a part of a fused_linear.
  FusedLinearArgs::Product product(const TensorView& y) const { return {weight_, bias_, y}; }
  // The same into a new tensor of the context's dtype.
  Tensor operator()(const LayerContext& context, const TensorView& x) const;

 private:
  TensorView weight_, bias_;  // not owned
};

struct LinearRows {
  std::string_view name;
  int64_t out;
};
// Before these layers of one input are made: their weights, and their biases, lie side by side on a device, where one
// product then serves them all. As WeightScope::place_together.
void place_together(const WeightScope& scope, std::span<const LinearRows> layers, int64_t in,
                    HasBias bias = HasBias::kNo);

// The op of that name where the context's set has it, else its parts. Parts round what they hand on to the context's
// dtype.
void fused_linear(const LayerContext& context, const FusedLinearArgs& args);

}  // namespace headrace
