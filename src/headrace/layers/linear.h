// Linear layer y = x W^T (+ b).
#pragma once
#include <span>
#include <string_view>

#include "headrace/layers/layer_context.h"
#include "headrace/weights/weight_scope.h"

namespace headrace {

enum class HasBias : uint8_t { kNo, kYes };

// Does not own its weights (the checkpoint does, or a tensor of the model). Callable from any thread.
class Linear {
 public:
  Linear() = default;
  Linear(const WeightView& weight, const TensorView& bias) : weight_(weight), bias_(bias) {}
  // Uses "<name>.weight" [out, in] and, with kYes, "<name>.bias" [out]. Errors as Checkpoint::weight.
  Linear(const WeightScope& scope, std::string_view name, int64_t out, int64_t in, HasBias bias = HasBias::kNo);

  const WeightView& weight() const { return weight_; }
  int64_t out_features() const { return weight_.dim(0); }
  // Computes y [tokens, out], any float dtype, from x [tokens, in].
  void forward(const LayerContext& context, const TensorView& x, const TensorView& y) const;
  // Returns this layer as one GEMM of a fused_linear call that writes y.
  FusedLinearArgs::Product product(const TensorView& y) const { return {weight_, bias_, y}; }
  // As forward, into a new tensor of the context's dtype.
  Tensor operator()(const LayerContext& context, const TensorView& x) const;

 private:
  WeightView weight_;  // neither owned
  TensorView bias_;
};

struct LinearRows {
  std::string_view name;
  int64_t out;
};
// Call before making these layers, which share an input: lays their weights, and biases, out contiguously on a device,
// so that one GEMM serves them all. See WeightScope::place_together.
void place_together(const WeightScope& scope, std::span<const LinearRows> layers, int64_t in,
                    HasBias bias = HasBias::kNo);

// Runs the op fused_linear if the context's ops have it, else its parts, which round intermediate results to the
// context's dtype.
void fused_linear(const LayerContext& context, const FusedLinearArgs& args);

// Adds a fused_linear call to the forward pass's pending GEMMs, which run as one op (gemm_sequence). It may read what
// pending calls write. Call run_gemms() before any other op. `input`, if given, owns args.x and lives until then.
// Runs pending calls and this one at once if the context has no pending GEMMs, or the ops no faster way for its M.
void add_gemm(const LayerContext& context, const FusedLinearArgs& args, Tensor input = {});
// Runs the pending GEMMs, if any. Errors as fused_linear; none are pending afterwards.
void run_gemms(const LayerContext& context);

}  // namespace headrace
