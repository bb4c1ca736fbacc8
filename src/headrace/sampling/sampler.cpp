#include "headrace/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "headrace/base/error.h"

namespace headrace {
namespace {

// SplitMix64 of seed, position and step, as a number in [0, 1).
double uniform(uint64_t seed, const SampleSpot& spot) {
  uint64_t z = seed + 0x9e3779b97f4a7c15u * (static_cast<uint64_t>(spot.position) + 1) +
               0xd1342543de82ef95u * static_cast<uint64_t>(spot.step);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

void penalise(std::span<float> logits, float penalty, std::span<const int32_t> history) {
  if (penalty == 1) return;
  std::vector<bool> seen(logits.size());
  for (const int32_t id : history) {
    const auto i = static_cast<size_t>(id);
    if (i >= logits.size() || seen[i]) continue;
    seen[i] = true;
    logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
  }
}

struct Candidate {
  int32_t id;
  double probability;
};

// Candidates after top-k, top-p and min-p, most likely first, not renormalised.
std::vector<Candidate> filtered(std::span<const float> logits, float largest, const SamplingParams& p) {
  std::vector<Candidate> all(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight =
        std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) / static_cast<double>(p.temperature));
    all[i] = {static_cast<int32_t>(i), weight};
    sum += weight;
  }
  for (Candidate& c : all) c.probability /= sum;
  std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
    return a.probability > b.probability || (a.probability == b.probability && a.id < b.id);
  });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < all.size()) all.resize(static_cast<size_t>(p.top_k));
  const double kept =
      std::accumulate(all.begin(), all.end(), 0.0, [](double s, const Candidate& c) { return s + c.probability; });
  double cumulated = 0;
  size_t count = 0;
  while (count < all.size() && (count == 0 || cumulated < static_cast<double>(p.top_p) * kept) &&
         all[count].probability >= static_cast<double>(p.min_p) * all[0].probability) {
    cumulated += all[count++].probability;
  }
  all.resize(count);
  return all;
}

int32_t draw(const std::vector<Candidate>& candidates, double u) {
  double sum = 0, reached = 0;
  for (const Candidate& c : candidates) sum += c.probability;
  for (const Candidate& c : candidates) {
    reached += c.probability;
    if (u * sum < reached) return c.id;
  }
  return candidates.back().id;
}

SampledToken described(std::span<const float> logits, int32_t id, size_t best) {
  const auto largest = static_cast<double>(logits[best]);
  double sum = 0, weighted = 0, second = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    const double shifted = static_cast<double>(logits[i]) - largest, weight = std::exp(shifted);
    sum += weight;
    weighted += weight > 0 ? weight * shifted : 0;
    if (i != best) second = std::max(second, shifted);
  }
  const double logprob = static_cast<double>(logits[static_cast<size_t>(id)]) - largest - std::log(sum);
  return {.id = id,
          .logprob = static_cast<float>(logprob),
          .confidence = static_cast<float>(std::exp(logprob)),
          .margin = static_cast<float>((1 - std::exp(second)) / sum),
          .entropy = static_cast<float>(std::log(sum) - weighted / sum)};
}

}  // namespace

SampledToken sample(std::span<float> all, const SamplingParams& params, std::span<const int32_t> history,
                    const SampleSpot& spot) {
  const std::span<float> logits = all.first(std::min(all.size(), static_cast<size_t>(spot.vocab)));
  HR_REQUIRE(!logits.empty(), ErrorCode::kInvalidArgument, "sampler: there are no logits");
  for (size_t i = 0; i < logits.size(); ++i) {
    HR_REQUIRE(!std::isnan(logits[i]), ErrorCode::kInternal, "sampler: the logit of token ", i, " is NaN");
  }
  if (spot.excluded_id && static_cast<size_t>(*spot.excluded_id) < logits.size()) {
    logits[static_cast<size_t>(*spot.excluded_id)] = -INFINITY;
  }
  penalise(logits, params.repetition_penalty, history);
  const auto best = static_cast<size_t>(std::ranges::max_element(logits) - logits.begin());
  if (params.temperature == 0) return described(logits, static_cast<int32_t>(best), best);
  const auto candidates = filtered(logits, logits[best], params);
  return described(logits, draw(candidates, uniform(params.seed, spot)), best);
}

}  // namespace headrace
