#include "headrace/layers/expert_router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

namespace headrace {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Returns the indices of the `count` largest, best first; ties go to the lower index.
std::vector<int32_t> best(const std::vector<float>& values, int64_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto goes_before = [&values](int32_t a, int32_t b) {
    const float x = values[static_cast<size_t>(a)], y = values[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + count, order.end(), goes_before);
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<float> values_of(const WeightScope& gate, const char* name, int64_t experts) {
  const TensorView stored = gate.host_tensor(name, {experts});
  std::vector<float> values(static_cast<size_t>(experts));
  for (int64_t e = 0; e < experts; ++e) {
    values[static_cast<size_t>(e)] = static_cast<float>(element_as_double(stored, e));
  }
  return values;
}

double sigmoid(float x) { return 1 / (1 + std::exp(-static_cast<double>(x))); }

}  // namespace

ExpertRouter::ExpertRouter(const WeightScope& scope, const ExpertRouterConfig& c)
    : config_(c), gate_(scope, "gate", c.num_experts, c.hidden) {
  const WeightScope gate = scope.scope("gate");
  const char* bias = gate.has("e_score_correction_bias") ? "e_score_correction_bias" : "expert_bias";
  if (c.selection_bias == ExpertRouterConfig::SelectionBias::kYes) {
    bias_ = values_of(gate, bias, c.num_experts);
    stored_bias_ = gate.tensor(bias, {c.num_experts});
  }
  if (c.expert_scale == ExpertRouterConfig::ExpertScale::kYes) {
    scale_ = values_of(gate, "per_expert_scale", c.num_experts);
    stored_scale_ = gate.tensor("per_expert_scale", {c.num_experts});
  }
}

// A group's score is the sum of its two best. Source: DeepSeek-V3 report, section 2.1.2.
void ExpertRouter::keep_best_groups(std::vector<float>& rank) const {
  if (config_.groups_per_token >= config_.num_groups) return;
  const int64_t size = config_.num_experts / config_.num_groups;
  std::vector<float> scores;
  for (int64_t g = 0; g < config_.num_groups; ++g) {
    float first = kNever, second = kNever;  // not by sorting: NaN has no order
    for (const float score : std::span(rank).subspan(static_cast<size_t>(g * size), static_cast<size_t>(size))) {
      second = std::max(second, std::min(first, score));
      first = std::max(first, score);
    }
    scores.push_back(size > 1 ? first + second : first);
  }
  const std::vector<int32_t> kept = best(scores, config_.groups_per_token);
  for (int64_t e = 0; e < config_.num_experts; ++e) {
    if (std::ranges::find(kept, static_cast<int32_t>(e / size)) == kept.end()) rank[static_cast<size_t>(e)] = kNever;
  }
}

void ExpertRouter::choose(const float* logits, std::vector<Choice>& choices) const {
  const bool sigmoids = config_.scores == ExpertRouterConfig::Scores::kSigmoid;
  std::vector<float> rank(logits, logits + config_.num_experts);  // softmax preserves the order of logits
  if (sigmoids) std::ranges::transform(rank, rank.begin(), [](float x) { return static_cast<float>(sigmoid(x)); });
  for (size_t e = 0; e < bias_.size(); ++e) rank[e] += bias_[e];
  keep_best_groups(rank);
  const std::vector<int32_t> chosen = best(rank, config_.experts_per_token);
  const double largest = *std::max_element(logits, logits + config_.num_experts);
  const auto score = [&](int64_t e) {
    return sigmoids ? sigmoid(logits[e]) : std::exp(static_cast<double>(logits[e]) - largest);
  };
  double sum = 0;
  if (config_.norm_topk_prob == ExpertRouterConfig::Renormalise::kYes) {
    for (const int32_t e : chosen) sum += score(e);
  } else if (!sigmoids) {
    for (int64_t e = 0; e < config_.num_experts; ++e) sum += score(e);
  }
  if (sum == 0) sum = 1;  // sigmoids are not normalised; if all vanish they stay zero
  for (const int32_t e : chosen) {
    const float scale = scale_.empty() ? config_.weight_scale : config_.weight_scale * scale_[static_cast<size_t>(e)];
    choices.push_back({e, static_cast<float>(score(e) / sum) * scale});
  }
}

std::vector<ExpertRouter::Choice> ExpertRouter::operator()(const LayerContext& context, const TensorView& x) const {
  const Tensor logits(DType::kF32, {x.dim(0), config_.num_experts});
  gate_.forward(context, x, logits);
  std::vector<Choice> choices;
  choices.reserve(static_cast<size_t>(x.dim(0) * config_.experts_per_token));
  for (int64_t t = 0; t < x.dim(0); ++t) choose(logits.data_as<float>() + t * config_.num_experts, choices);
  return choices;
}

ExpertRouter::Choices ExpertRouter::on_device(const LayerContext& context, const OnDevice& of) const {
  const int64_t tokens = of.x.dim(0), shared = of.shared == ExpertRoutingArgs::Shared::kNone ? 0 : 1;
  const Tensor logits = context.make(DType::kF32, {tokens, config_.num_experts});
  const Tensor shared_gate = of.shared_gate != nullptr ? context.make(DType::kF32, {tokens, 1}) : Tensor();
  FusedLinearArgs products{.x = of.x, .products = {gate_.product(logits)}};
  if (of.shared_gate != nullptr) products.products[1] = of.shared_gate->product(shared_gate), products.num_products = 2;
  fused_linear(context, products);
  const Shape shape{tokens, config_.experts_per_token + shared};
  Choices choices{context.make(DType::kI32, shape), context.make(DType::kF32, shape)};
  context.ops->expert_routing({.logits = logits,
                               .bias = stored_bias_,
                               .expert_scale = stored_scale_,
                               .scores = config_.scores,
                               .renormalise = config_.norm_topk_prob,
                               .num_groups = config_.num_groups,
                               .groups_per_token = config_.groups_per_token,
                               .weight_scale = config_.weight_scale,
                               .num_rows = of.num_rows,
                               .shared = of.shared,
                               .shared_gate = shared_gate,
                               .experts = choices.experts,
                               .weights = choices.weights},
                              context.op);
  return choices;
}

}  // namespace headrace
