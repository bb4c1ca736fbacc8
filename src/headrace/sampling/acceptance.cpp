#include "headrace/sampling/acceptance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using Rule = DecodingParams::Rule;

// Returns the candidates, in ascending entropy, whose preceding entropies sum to at most the bound.
// Source: Ben-Hamu et al. 2025, entropy-bounded unmasking.
std::vector<size_t> within_entropy_bound(std::span<const SampledToken> candidates, float bound) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return candidates[i].entropy; });
  double before = 0;
  size_t count = 0;
  while (count < order.size() && before <= static_cast<double>(bound)) {
    before += static_cast<double>(candidates[order[count++]].entropy);
  }
  order.resize(count);
  std::ranges::sort(order);
  return order;
}

bool passes(const SampledToken& candidate, const AcceptanceRule& rule) {
  if (rule.rule == Rule::kLeftmost || rule.rule == Rule::kRandom) return false;
  const double score = score_of(candidate, rule.rule), threshold = static_cast<double>(rule.threshold);
  if (rule.rule == Rule::kEntropy) return -score <= threshold;
  return rule.passes == DiffusionInfo::Acceptance::kAbove ? score > threshold : score >= threshold;
}

// Returns the rank of a candidate. The largest ranks are a draw without replacement by exp(score / order_temperature).
// Source: Vieira 2014, "Gumbel-max trick and weighted reservoir sampling"; Kool et al. 2019.
double rank_of(const SampledToken& candidate, const AcceptanceRule& rule) {
  const double score = score_of(candidate, rule.rule);
  if (rule.order_temperature == 0 || rule.rule == Rule::kRandom) return score;
  return score / static_cast<double>(rule.order_temperature) - std::log(-std::log(candidate.order));
}

// Returns false for published loops that only rank by the rule, unless the request sets a threshold.
bool reads_own_threshold(const DecodingParams& params, const DiffusionInfo& info) {
  return params.schedule == DecodingParams::Schedule::kThreshold || info.loop == DiffusionInfo::Loop::kDynamic;
}

}  // namespace

Rule rule_of(const DecodingParams& params, const DiffusionInfo& info) {
  if (info.attention == DiffusionInfo::Attention::kCanvas) return Rule::kEntropyBound;
  const bool reference = params.schedule == DecodingParams::Schedule::kReference;
  return params.rule.value_or(reference ? info.reference.rule : Rule::kConfidence);
}

AcceptanceRule acceptance_rule(const DecodingParams& params, const DiffusionInfo& info) {
  return {rule_of(params, info), params.threshold.value_or(info.threshold), info.acceptance, params.order_temperature};
}

std::optional<float> threshold_of(const DecodingParams& params, const DiffusionInfo& info) {
  const AcceptanceRule rule = acceptance_rule(params, info);
  if (info.attention == DiffusionInfo::Attention::kCanvas) return rule.threshold;
  const bool asked = params.threshold && info.loop == DiffusionInfo::Loop::kEven;
  const bool ranks = rule.rule == Rule::kLeftmost || rule.rule == Rule::kRandom;
  if (ranks || (!asked && !reads_own_threshold(params, info))) return std::nullopt;
  return rule.threshold;
}

void check_threshold(const DecodingParams& params, const DiffusionInfo& info) {
  const bool canvas = info.attention == DiffusionInfo::Attention::kCanvas;  // its threshold bounds summed entropies
  const bool nats = canvas || params.rule == Rule::kEntropy || params.rule == Rule::kEntropyBound;
  const float threshold = params.threshold.value_or(0);
  HR_REQUIRE(threshold >= 0 && (nats || threshold <= 1 || std::isinf(threshold)), ErrorCode::kInvalidArgument,
             "threshold is ", threshold, ", expected ",
             nats ? "0 or more nats" : "0 to 1, or inf for a probability that no token passes");
  if (canvas) return;  // a canvas model's own threshold is in nats
  HR_REQUIRE(params.threshold || !nats || !reads_own_threshold(params, info), ErrorCode::kInvalidArgument,
             "threshold is absent, expected one in nats with the rule '",
             params.rule == Rule::kEntropy ? "entropy" : "entropy_bound", "': the model's own is a probability");
}

void check_semi_complete(const DecodingParams& params, const DiffusionInfo& info) {
  const float unasked = DecodingParams{}.semi_complete;
  HR_REQUIRE(params.semi_complete == unasked || info.progress == DiffusionInfo::Progress::kInTurn,
             ErrorCode::kInvalidArgument, "semi_complete is ", params.semi_complete, ", expected ", unasked,
             " with this model, each of whose blocks decides a token in every pass");
}

double score_of(const SampledToken& candidate, Rule rule) {
  switch (rule) {
    case Rule::kConfidence: return static_cast<double>(candidate.confidence);
    case Rule::kMargin: return static_cast<double>(candidate.margin);
    case Rule::kEntropy:
    case Rule::kEntropyBound: return -static_cast<double>(candidate.entropy);
    case Rule::kLeftmost: return 0;
    case Rule::kRandom: return candidate.order;
  }
  return static_cast<double>(candidate.confidence);
}

std::vector<size_t> accepted(std::span<const SampledToken> candidates, const AcceptanceRule& rule, AtLeast least) {
  std::vector<size_t> kept;
  if (rule.rule == Rule::kEntropyBound) {
    kept = within_entropy_bound(candidates, rule.threshold);
  } else {
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (passes(candidates[i], rule)) kept.push_back(i);
    }
  }
  return kept.empty() && least == AtLeast::kOne ? best_of(candidates, rule, 1) : kept;
}

std::vector<size_t> best_of(std::span<const SampledToken> candidates, const AcceptanceRule& rule, int32_t count) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return rank_of(candidates[i], rule); });
  order.resize(std::min(order.size(), static_cast<size_t>(count)));
  std::ranges::sort(order);
  return order;
}

}  // namespace headrace
