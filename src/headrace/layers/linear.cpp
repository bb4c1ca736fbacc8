#include "headrace/layers/linear.h"

#include "headrace/layers/onednn_matmul.h"

namespace headrace {
namespace {

// From here on a matrix library is faster; below it the weights' bytes bound the product, and ours reads them once.
constexpr int64_t kDenseRows = 16;

bool use_matrix_library(const LayerContext& context, const LinearArgs& args) {
  return context.on_cpu() && context.op.determinism == Determinism::kFast && args.x.dim(0) >= kDenseRows &&
         context.ops->name != "reference" && onednn_supports(args);
}

}  // namespace

Linear::Linear(const WeightScope& scope, std::string_view name, int64_t out, int64_t in, HasBias bias)
    : weight_(scope.scope(name).tensor("weight", {out, in})) {
  if (bias == HasBias::kYes) bias_ = scope.scope(name).tensor("bias", {out});
}

void Linear::forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
  const LinearArgs args{.x = x, .weight = weight_, .bias = bias_, .y = y};
  if (use_matrix_library(context, args)) {
    onednn_matmul(args, context.op);
  } else {
    context.ops->linear(args, context.op);
  }
}

Tensor Linear::operator()(const LayerContext& context, const TensorView& x) const {
  Tensor y = context.make({x.dim(0), out_features()});
  forward(context, x, y);
  return y;
}

}  // namespace headrace
