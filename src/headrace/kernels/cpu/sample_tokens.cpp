#include "headrace/kernels/cpu/sample_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace headrace::cpu {
namespace {

struct Candidate {
  int32_t id;
  double weight;
};

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
    const auto end = std::min(all_.size(), std::max<size_t>(64, 4 * (i + 1)));
    const auto at = [this](size_t n) { return all_.begin() + static_cast<std::ptrdiff_t>(n); };
    std::partial_sort(at(sorted_), at(end), all_.end(), [](const Candidate& a, const Candidate& b) {
      return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
    });
    sorted_ = end;
  }

  std::vector<Candidate> all_;
  size_t sorted_ = 0;
};

std::vector<Candidate> weighted(std::span<const float> logits, float largest, std::optional<int32_t> excluded_id,
                                float temperature) {
  std::vector<Candidate> all;
  all.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    if (excluded_id && id == *excluded_id) continue;
    all.push_back({id, std::exp((static_cast<double>(logits[i]) - static_cast<double>(largest)) /
                                static_cast<double>(temperature))});
  }
  return all;
}

// The id that p.uniform falls on. `largest` is the largest of the logits without `excluded_id`; p.temperature is above
// 0.
int32_t drawn(std::span<const float> logits, float largest, std::optional<int32_t> excluded_id, const TokenDraw& p) {
  Descending candidates(weighted(logits, largest, excluded_id, p.temperature));
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

void sample_tokens(const SampleTokensArgs& a, const OpContext&) {
  check(a);
  const auto* draws = static_cast<const TokenDraw*>(a.draws.data());
  const auto* best = static_cast<const int32_t*>(a.best.data());
  for (int64_t r = 0; r < a.logits.dim(0); ++r) {
    const std::span<const float> row(static_cast<const float*>(a.logits.select(r).data()),
                                     static_cast<size_t>(a.vocab));
    const float largest = *static_cast<const float*>(a.stats.select(r).data());
    const int32_t id =
        draws[r].temperature > 0 ? drawn(row, largest, a.excluded_id, draws[r]) : best[r * a.best.stride(0)];
    static_cast<int32_t*>(a.ids.data())[r] = id;
    static_cast<float*>(a.chosen.data())[r] = row[static_cast<size_t>(id)];
  }
}

}  // namespace headrace::cpu
