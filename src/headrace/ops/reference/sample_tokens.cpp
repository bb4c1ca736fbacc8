#include <algorithm>
#include <cmath>
#include <vector>

#include "headrace/ops/reference/reference_ops.h"

namespace headrace::reference {
namespace {

struct Candidate {
  int32_t id;
  double weight;
};

int32_t drawn_from_all(std::vector<Candidate> all, const TokenDraw& draw) {
  std::ranges::stable_sort(all, std::greater<>(), &Candidate::weight);
  const std::vector<Candidate> every = all;
  if (draw.top_k > 0 && static_cast<size_t>(draw.top_k) < all.size()) all.resize(static_cast<size_t>(draw.top_k));
  const auto sum = [](const std::vector<Candidate>& of) {
    double total = 0;
    for (const Candidate& c : of) total += c.weight;
    return total;
  };
  const double enough = static_cast<double>(draw.top_p) * sum(draw.top_p_of == TopPOf::kAll ? every : all);
  const double least = static_cast<double>(draw.min_p) * all.front().weight;
  if (draw.top_p < 1 || draw.min_p > 0) {
    std::vector<Candidate> kept;
    double reached = 0;
    for (const Candidate& c : all) {
      if (!kept.empty() && (reached >= enough || c.weight < least)) break;
      kept.push_back(c);
      reached += c.weight;
    }
    all = kept;
  }
  const double target = draw.uniform * sum(all);
  double reached = 0;
  int32_t last = all.front().id;  // last candidate with a positive weight
  for (const Candidate& c : all) {
    if (c.weight == 0) break;
    reached += c.weight;
    if (target < reached) return c.id;
    last = c.id;
  }
  return last;
}

}  // namespace

void sample_tokens(const SampleTokensArgs& a, const OpContext&) {
  check(a);
  const auto logits = a.logits.as<const float, 2>("logits");
  const auto stats = a.stats.as<const float, 2>("stats");
  const auto* draws = static_cast<const TokenDraw*>(a.draws.data());
  for (int64_t r = 0; r < logits.dim(0); ++r) {
    int32_t id = a.best.as<const int32_t, 1>("best")(r);
    if (draws[r].temperature > 0) {
      std::vector<Candidate> all;
      for (int32_t i = 0; i < a.vocab; ++i) {
        if (a.excluded_id && i == *a.excluded_id) continue;
        const double shifted = static_cast<double>(logits(r, i)) - static_cast<double>(stats(r, 0));
        all.push_back({i, std::exp(shifted / static_cast<double>(draws[r].temperature))});
      }
      id = drawn_from_all(std::move(all), draws[r]);
    }
    a.ids.as<int32_t, 1>("ids")(r) = id;
    a.chosen.as<float, 1>("chosen")(r) = logits(r, id);
  }
}

}  // namespace headrace::reference
