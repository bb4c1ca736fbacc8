#include "headrace/layers/moe_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace headrace {
namespace {

std::vector<GatedMLP> stacked_experts(const WeightScope& scope, const MoEConfig& c) {
  const TensorView gate_up = scope.tensor("gate_up_proj", {c.num_experts, 2 * c.intermediate, c.hidden});
  const TensorView down = scope.tensor("down_proj", {c.num_experts, c.hidden, c.intermediate});
  std::vector<GatedMLP> experts;
  for (int64_t e = 0; e < c.num_experts; ++e) {
    const TensorView both = gate_up.select(e);
    experts.emplace_back(Linear(both.slice(0, c.intermediate), {}),
                         Linear(both.slice(c.intermediate, 2 * c.intermediate), {}), Linear(down.select(e), {}));
  }
  return experts;
}

std::vector<GatedMLP> load_experts(const WeightScope& scope, const MoEConfig& c) {
  if (scope.has("gate_up_proj")) return stacked_experts(scope, c);
  std::vector<GatedMLP> experts;
  for (int64_t e = 0; e < c.num_experts; ++e) {
    experts.emplace_back(scope.scope(std::to_string(e)), c.hidden, c.intermediate);
  }
  return experts;
}

void copy_row(const TensorView& from, int64_t i, const TensorView& to, int64_t j) {
  const TensorView source = from.select(i), target = to.select(j);
  std::memcpy(target.data(), source.data(), static_cast<size_t>(source.bytes()));
}

}  // namespace

MoELayer::MoELayer(const WeightScope& scope, const MoEConfig& config)
    : config_(config),
      router_(scope, "gate", config.num_experts, config.hidden),
      experts_(load_experts(scope.scope("experts"), config)) {
  if (config.shared_intermediate == 0) return;
  shared_.emplace(scope.scope("shared_expert"), config.hidden, config.shared_intermediate);
  shared_gate_ = Linear(scope, "shared_expert_gate", 1, config.hidden);
}

std::vector<MoELayer::Choice> MoELayer::route(const LayerContext& context, const TensorView& x) const {
  const int64_t experts = config_.num_experts, k = config_.experts_per_token;
  const Tensor logits(DType::kF32, {x.dim(0), experts});
  router_.forward(context, x, logits);
  std::vector<Choice> choices;
  std::vector<int32_t> order(static_cast<size_t>(experts));
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const float* row = logits.data_as<float>() + t * experts;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + k, order.end(),
                      [row](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
    const float largest = row[order[0]];
    const int64_t summed = config_.norm_topk_prob == MoEConfig::Renormalise::kYes ? k : experts;
    double sum = 0;  // the softmax's denominator: over all experts, or over the chosen ones when renormalised
    for (int64_t j = 0; j < summed; ++j) {
      sum += std::exp(static_cast<double>(row[summed == k ? order[static_cast<size_t>(j)] : j] - largest));
    }
    for (int64_t j = 0; j < k; ++j) {
      const int32_t e = order[static_cast<size_t>(j)];
      choices.push_back({e, static_cast<float>(std::exp(static_cast<double>(row[e] - largest)) / sum)});
    }
  }
  return choices;
}

void MoELayer::run_expert(const LayerContext& context, int64_t expert, const TensorView& x,
                          const std::vector<Choice>& choices, const TensorView& results) const {
  std::vector<int64_t> places;  // of this expert among the choices
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].expert == expert) places.push_back(static_cast<int64_t>(i));
  }
  if (places.empty()) return;
  const auto rows = static_cast<int64_t>(places.size());
  const Tensor in(x.dtype(), {rows, x.dim(1)}), out(DType::kF32, {rows, x.dim(1)});
  for (int64_t r = 0; r < rows; ++r) {
    copy_row(x, places[static_cast<size_t>(r)] / config_.experts_per_token, in, r);
  }
  experts_[static_cast<size_t>(expert)].forward(context, in, out);
  for (int64_t r = 0; r < rows; ++r) copy_row(out, r, results, places[static_cast<size_t>(r)]);
}

void MoELayer::forward(const LayerContext& context, const TensorView& x, const TensorView& y) const {
  const int64_t tokens = x.dim(0), k = config_.experts_per_token, hidden = config_.hidden;
  const std::vector<Choice> choices = route(context, x);
  const Tensor results(DType::kF32, {tokens * k, hidden});
  for (int64_t e = 0; e < config_.num_experts; ++e) run_expert(context, e, x, choices, results);
  const Tensor sum = Tensor::zeros(DType::kF32, {tokens, hidden});
  for (int64_t i = 0; i < tokens * k; ++i) {  // in the order of a token's choices
    float* to = sum.data_as<float>() + i / k * hidden;
    const float* from = results.data_as<float>() + i * hidden;
    for (int64_t d = 0; d < hidden; ++d) to[d] += choices[static_cast<size_t>(i)].weight * from[d];
  }
  if (shared_) {
    const Tensor out(DType::kF32, {tokens, hidden}), gate(DType::kF32, {tokens, 1});
    shared_->forward(context, x, out);
    shared_gate_.forward(context, x, gate);
    context.ops->pointwise({.kind = PointwiseKind::kSigmoidMul, .x = gate, .y = out, .out = out}, context.op);
    context.ops->pointwise({.kind = PointwiseKind::kAdd, .x = sum, .y = out, .out = y}, context.op);
    return;
  }
  const Tensor zeros = Tensor::zeros(DType::kF32, {tokens, 1});
  context.ops->pointwise({.kind = PointwiseKind::kAdd, .x = zeros, .y = sum, .out = y}, context.op);
}

}  // namespace headrace
