#include "headrace/kernels/cpu/sample_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "headrace/base/parallel.h"

namespace headrace::cpu {
namespace {

struct Candidate {
  int32_t id;
  double weight;
};

constexpr bool comes_first(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

// Candidates in descending order, sorted no further than they are asked for: most draws end early in a large
// vocabulary.
class Descending {
 public:
  explicit Descending(std::vector<Candidate> all) : all_(std::move(all)) {}

  size_t size() const { return all_.size(); }
  double sum() const {
    return std::accumulate(all_.begin(), all_.end(), 0.0, [](double s, const Candidate& c) { return s + c.weight; });
  }
  const Candidate& operator[](size_t i) {
    if (i >= sorted_) sort_beyond(i);
    return all_[i];
  }

 private:
  void sort_beyond(size_t i) {
    const auto end = std::min(all_.size(), std::max<size_t>(64, 16 * (i + 1)));
    const auto at = [this](size_t n) { return all_.begin() + static_cast<std::ptrdiff_t>(n); };
    constexpr size_t kFew = 1024;  // whose heap moves less than a partition does
    if (end <= kFew) {
      std::partial_sort(at(sorted_), at(end), all_.end(), comes_first);
    } else {
      std::nth_element(at(sorted_), at(end), all_.end(), comes_first);
      std::sort(at(sorted_), at(end), comes_first);
    }
    sorted_ = end;
  }

  std::vector<Candidate> all_;
  size_t sorted_ = 0;
};

double weight_of(float logit, float largest, float temperature) {
  return std::exp((static_cast<double>(logit) - static_cast<double>(largest)) / static_cast<double>(temperature));
}

std::vector<Candidate> weighted(std::span<const float> logits, float largest, std::optional<int32_t> excluded_id,
                                float temperature) {
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (excluded_id && id == *excluded_id) continue;
    all.push_back({id, weight_of(logits[i], largest, temperature)});
  }
  return all;
}

// The first `count` of them: what the others weigh is not asked.
std::vector<Candidate> first_weighted(std::span<const float> logits, float largest, std::optional<int32_t> excluded_id,
                                      float temperature, size_t count) {
  std::vector<Candidate> kept;  // a heap by logits, the last one in front
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate next{static_cast<int32_t>(i), static_cast<double>(logits[i])};
    if ((kept.size() == count && !comes_first(next, kept.front())) || next.id == excluded_id) continue;
    if (kept.size() == count) {
      std::ranges::pop_heap(kept, comes_first);
      kept.pop_back();
    }
    kept.push_back(next);
    std::ranges::push_heap(kept, comes_first);
  }
  for (Candidate& c : kept) c.weight = weight_of(logits[static_cast<size_t>(c.id)], largest, temperature);
  return kept;
}

// Whether a draw asks what candidates beyond its top k weigh.
bool weighs_all(const TokenDraw& p) { return p.top_k <= 0 || (p.top_p < 1 && p.top_p_of == TopPOf::kAll); }

// The id that p.uniform falls on. `largest` is the largest of the logits without `excluded_id`; p.temperature is above
// 0.
int32_t drawn(std::span<const float> logits, float largest, std::optional<int32_t> excluded_id, const TokenDraw& p) {
  Descending candidates(
      weighs_all(p) ? weighted(logits, largest, excluded_id, p.temperature)
                    : first_weighted(logits, largest, excluded_id, p.temperature, static_cast<size_t>(p.top_k)));
  size_t count = candidates.size();
  const double all = candidates.sum();
  double total = all;
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < count) {
    count = static_cast<size_t>(p.top_k);
    total = 0;
    for (size_t i = 0; i < count; ++i) total += candidates[i].weight;
  }
  if (p.top_p < 1 || p.min_p > 0) {
    const double enough = static_cast<double>(p.top_p) * (p.top_p_of == TopPOf::kAll ? all : total),
                 least = static_cast<double>(p.min_p) * candidates[0].weight;
    double kept = 0;
    size_t n = 0;
    while (n < count && (n == 0 || (kept < enough && candidates[n].weight >= least))) kept += candidates[n++].weight;
    count = n;
    total = kept;
  }
  double reached = 0;
  size_t last = 0;  // with a weight: sums in another order may leave a rest behind it
  for (size_t i = 0; i < count && candidates[i].weight > 0; ++i) {
    reached += candidates[i].weight;
    if (p.uniform * total < reached) return candidates[i].id;
    last = i;
  }
  return candidates[last].id;
}

}  // namespace

void sample_tokens(const SampleTokensArgs& a, const OpContext& context) {
  check(a);
  const auto* draws = static_cast<const TokenDraw*>(a.draws.data());
  const auto* best = static_cast<const int32_t*>(a.best.data());
  parallel_for(context.threads, a.logits.dim(0), [&](int64_t r) {
    const std::span<const float> row(static_cast<const float*>(a.logits.select(r).data()),
                                     static_cast<size_t>(a.vocab));
    const float largest = *static_cast<const float*>(a.stats.select(r).data());
    const int32_t id =
        draws[r].temperature > 0 ? drawn(row, largest, a.excluded_id, draws[r]) : best[r * a.best.stride(0)];
    static_cast<int32_t*>(a.ids.data())[r] = id;
    static_cast<float*>(a.chosen.data())[r] = row[static_cast<size_t>(id)];
  });
}

}  // namespace headrace::cpu
