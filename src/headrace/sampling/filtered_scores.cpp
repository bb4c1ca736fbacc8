#include "headrace/sampling/filtered_scores.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace headrace {
namespace {

using Weights = std::vector<double>;

double sum_of(const Weights& weights) { return std::accumulate(weights.begin(), weights.end(), 0.0); }

// Moves the `count` largest to the front, in descending order; the first `sorted` already are.
void sort_on(Weights& weights, size_t sorted, size_t count) {
  const auto at = [&weights](size_t n) { return weights.begin() + static_cast<std::ptrdiff_t>(n); };
  std::nth_element(at(sorted), at(count) - 1, weights.end(), std::greater<>());
  std::sort(at(sorted), at(count), std::greater<>());
}

void keep_top_k(Weights& weights, const TokenDraw& draw) {
  const auto count = static_cast<size_t>(draw.top_k);
  if (count == 0 || count >= weights.size()) return;
  sort_on(weights, 0, count);
  weights.resize(count);
}

// Applies top-p and min-p to weights whose largest is 1: keeps the largest until their sum reaches `enough`, and none
// below `least`.
void keep_enough(Weights& weights, double enough, double least) {
  double kept = 0;
  size_t sorted = 0, count = 0;
  for (; count < weights.size() && (count == 0 || kept < enough); ++count) {
    if (count == sorted) {
      sorted = std::min(weights.size(), std::max<size_t>(64, 8 * sorted));
      sort_on(weights, count, sorted);
    }
    if (count > 0 && weights[count] < least) break;
    kept += weights[count];
  }
  weights.resize(count);
}

// Returns the scores of a kept token of weight `weight`.
FilteredScores scores_among(Weights kept, double weight) {
  const double sum = sum_of(kept);
  double weighted = 0;
  for (const double w : kept) weighted += w > 0 ? w * std::log(w) : 0;
  if (kept.size() == 1) kept.push_back(0);
  sort_on(kept, 0, 2);
  return {.confidence = static_cast<float>(std::min(1.0, weight / sum)),
          .margin = static_cast<float>((kept[0] - kept[1]) / sum),
          .entropy = static_cast<float>(std::log(sum) - weighted / sum)};
}

}  // namespace

FilteredScores filtered_scores(std::span<const float> logits, std::optional<int32_t> excluded_id, const TokenDraw& draw,
                               int32_t id) {
  float largest = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<int32_t>(i) != excluded_id) largest = std::max(largest, logits[i]);
  }
  const double temperature = draw.temperature > 0 ? static_cast<double>(draw.temperature) : 1;
  const auto weight = [&](size_t i) {
    return std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / temperature);
  };
  Weights weights;
  weights.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (static_cast<int32_t>(i) != excluded_id) weights.push_back(weight(i));
  }
  const double all = sum_of(weights);
  keep_top_k(weights, draw);
  if (draw.top_p < 1 || draw.min_p > 0) {
    const double of = draw.top_p_of == TopPOf::kAll ? all : sum_of(weights);
    keep_enough(weights, static_cast<double>(draw.top_p) * of, static_cast<double>(draw.min_p));
  }
  return scores_among(std::move(weights), weight(static_cast<size_t>(id)));
}

}  // namespace headrace
