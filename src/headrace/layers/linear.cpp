#include "headrace/layers/linear.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "headrace/layers/onednn_matmul.h"

namespace headrace {
namespace {

// Returns true if oneDNN runs the GEMM. With fewer rows the weights dominate, and headrace's kernels read them once, as
// stored.
bool use_matrix_library(const LayerContext& context, const LinearArgs& args) {
  return context.on_cpu() && !args.weight.packed() && context.op.determinism == Determinism::kFast &&
         args.x.dim(0) >= context.ops->library_rows && context.ops->name != "reference" && onednn_supports(args);
}

// y += (x A^T) B^T
void add_change(const LayerContext& context, const TensorView& x, const LowRankChange& change, const TensorView& y) {
  const Tensor inner = context.make(DType::kF32, {x.dim(0), change.a.dim(0)});
  const Tensor sum = context.make(DType::kF32, {x.dim(0), change.b.dim(0)});
  context.ops->linear({.x = x, .weight = change.a, .y = inner}, context.op);
  context.ops->linear({.x = inner, .weight = change.b, .y = sum}, context.op);
  context.ops->pointwise({.kind = PointwiseKind::kAdd, .x = y, .y = sum, .out = y}, context.op);
}

void multiply(const LayerContext& context, const LinearArgs& args) {
  if (use_matrix_library(context, args)) {
    onednn_matmul(args, context.op);
  } else {
    context.ops->linear(args, context.op);
  }
  if (const LowRankChange* change = args.weight.change()) add_change(context, args.x, *change, args.y);
}

}  // namespace

Linear::Linear(const WeightScope& scope, std::string_view name, int64_t out, int64_t in, HasBias bias)
    : weight_(scope.scope(name).weight("weight", {out, in})) {
  if (bias == HasBias::kYes) bias_ = scope.scope(name).tensor("bias", {out});
}

void place_together(const WeightScope& scope, std::span<const LinearRows> layers, int64_t in, HasBias bias) {
  std::vector<Checkpoint::Part> weights, biases;
  for (const LinearRows& layer : layers) {
    weights.push_back({str(layer.name, ".weight"), {layer.out, in}});
    biases.push_back({str(layer.name, ".bias"), {layer.out}});
  }
  scope.place_together(std::move(weights));
  if (bias == HasBias::kYes) scope.place_together(std::move(biases));
}

void Linear::forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
  multiply(context, {.x = x, .weight = weight_, .bias = bias_, .y = y});
}

Tensor Linear::operator()(const LayerContext& context, const TensorView& x) const {
  Tensor y = context.make({x.dim(0), out_features()});
  forward(context, x, y);
  return y;
}

void fused_linear(const LayerContext& context, const FusedLinearArgs& a) {
  if (context.ops->fused_linear(a, context.op)) return;
  Tensor normed;
  if (a.norm_weight) {
    normed = context.make(a.x.shape());
    context.ops->rms_norm({.x = a.x, .weight = a.norm_weight, .eps = a.eps, .weight_form = a.norm_form, .out = normed},
                          context.op);
  }
  const TensorView x = normed ? normed.view() : a.x, result = a.products[0].y;
  const bool combined = a.combine == FusedLinearArgs::Combine::kSiluMul;
  const Tensor apart = combined || a.residual ? context.make(result.shape()) : Tensor();
  for (int i = 0; i < a.num_products; ++i) {
    const FusedLinearArgs::Product& p = a.products[static_cast<size_t>(i)];
    const bool kept_apart = a.residual || (combined && i == 1);
    multiply(context, {.x = x, .weight = p.weight, .bias = p.bias, .y = kept_apart ? apart.view() : p.y});
  }
  if (combined) {
    context.ops->pointwise({.kind = PointwiseKind::kSiluMul, .x = result, .y = apart, .out = result}, context.op);
  }
  if (a.residual) {
    context.ops->pointwise({.kind = PointwiseKind::kAdd, .x = a.residual, .y = apart, .out = result}, context.op);
  }
}

void add_gemm(const LayerContext& context, const FusedLinearArgs& args, Tensor input) {
  if (context.gemms == nullptr || std::max<int64_t>(args.x.dim(0), 1) > context.ops->most_sequence_rows) {
    run_gemms(context);
    return fused_linear(context, args);
  }
  context.gemms->calls.push_back(args);
  if (input) context.gemms->inputs.push_back(std::move(input));
}

void run_gemms(const LayerContext& context) {
  if (context.gemms == nullptr || context.gemms->calls.empty()) return;
  const PendingGemms gemms = std::exchange(*context.gemms, {});
  context.ops->gemm_sequence(gemms.calls, context.op);
}

}  // namespace headrace
