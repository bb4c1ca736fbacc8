#include "headrace/ops/cpu/sample_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "headrace/core/parallel.h"
#include "headrace/ops/cpu/distance_bins.h"
#include "headrace/ops/cpu/top_tokens.h"

namespace headrace::cpu {
namespace {

struct Candidate {
  int32_t id;
  double weight;
};

constexpr bool comes_first(const Candidate& a, const Candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

// Candidates in descending order, sorted only as far as they are accessed.
class Descending {
 public:
  explicit Descending(std::vector<Candidate> all = {}) : all_(std::move(all)) {}

  size_t size() const { return all_.size(); }
  const Candidate& operator[](size_t i) {
    if (i >= sorted_) sort_beyond(i);
    return all_[i];
  }

 private:
  void sort_beyond(size_t i) {
    const auto end = std::min(all_.size(), std::max<size_t>(64, 16 * (i + 1)));
    const auto at = [this](size_t n) { return all_.begin() + static_cast<std::ptrdiff_t>(n); };
    constexpr size_t kFew = 1024;  // up to here a partial sort's heap moves less than a partition
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

// Logits of the row to sample from.
struct Row {
  std::span<const float> logits;
  float largest, temperature;
  std::optional<int32_t> excluded_id;

  bool holds(size_t id) const { return static_cast<int32_t>(id) != excluded_id; }
  // Distance to the largest logit, in temperatures.
  double distance(size_t id) const {
    return (static_cast<double>(largest) - static_cast<double>(logits[id])) / static_cast<double>(temperature);
  }
  double weight(size_t id) const {
    const double weight = std::exp(-distance(id));
    return weight > 0 ? weight : 0;  // also maps NaN to 0
  }
};

// Candidates in descending order, in groups. A group is listed and sorted only when it is accessed.
class Groups {
 public:
  // Makes a single group.
  explicit Groups(std::vector<Candidate> few) : listed_(0) {
    sums_.push_back(
        std::accumulate(few.begin(), few.end(), 0.0, [](double sum, const Candidate& c) { return sum + c.weight; }));
    members_ = Descending(std::move(few));
  }
  // Groups all candidates of a row by bins. The sums do not depend on the number of threads.
  Groups(const Row& row, int threads) : row_(&row), sums_(DistanceBins::kCount) {
    static const DistanceBins bins;
    const size_t ids = row.logits.size(), parts = std::clamp<size_t>(ids / 16384, 1, 16);
    std::vector<double> sums(parts * DistanceBins::kCount);
    parallel_for(threads, static_cast<int64_t>(parts), [&](int64_t part) {
      const auto at = static_cast<size_t>(part);
      for (size_t id = ids * at / parts; id < ids * (at + 1) / parts; ++id) {
        if (!row.holds(id)) continue;
        const double distance = row.distance(id);
        const size_t bin = DistanceBins::of(distance);
        sums[at * DistanceBins::kCount + bin] += bins.weight(bin, distance);
      }
    });
    for (size_t i = 0; i < sums.size(); ++i) sums_[i % DistanceBins::kCount] += sums[i];
  }

  size_t size() const { return sums_.size(); }
  double sum(size_t group) const { return sums_[group]; }
  double sum() const { return std::accumulate(sums_.begin(), sums_.end(), 0.0); }
  double least_weight(size_t group) const { return row_ == nullptr ? 0 : DistanceBins::least_weight(group); }
  Descending& members(size_t group) {
    if (listed_ != group) list(group);
    return members_;
  }

 private:
  void list(size_t group) {
    // Conservative bounds reject most ids without a division.
    const double largest = row_->largest, temperature = row_->temperature, margin = 1e-9 * std::abs(largest);
    const double low = largest - 1.001 * temperature * DistanceBins::end(group) - margin,
                 high = largest - 0.999 * temperature * DistanceBins::begin(group) + margin;
    std::vector<Candidate> all;
    for (size_t id = 0; id < row_->logits.size(); ++id) {
      const auto logit = static_cast<double>(row_->logits[id]);
      if (!(logit >= low && logit <= high) || !row_->holds(id)) continue;
      if (DistanceBins::of(row_->distance(id)) != group) continue;
      all.push_back({static_cast<int32_t>(id), row_->weight(id)});
    }
    members_ = Descending(std::move(all)), listed_ = group;
  }

  const Row* row_ = nullptr;  // not owned
  std::vector<double> sums_;
  Descending members_;
  std::optional<size_t> listed_;
};

// Returns the first `count` candidates with weights; other candidates' weights are not computed.
std::vector<Candidate> first_weighted(const Row& row, size_t count) {
  std::vector<Candidate> first;
  for (const TokenLogit& token : likeliest_tokens(row.logits, count, row.excluded_id)) {
    first.push_back({token.id, row.weight(static_cast<size_t>(token.id))});
  }
  return first;
}

// End of the candidates: whole groups, then `members` of group `group`.
struct End {
  size_t group, members;
  double sum;  // of all candidates before the end
};

// Returns the end of the shortest prefix with weight `enough`, cut before the first candidate lighter than `least`. It
// contains at least one candidate.
End end_of(Groups& groups, double enough, double least) {
  double kept = 0;
  bool any = false;
  for (size_t g = 0; g < groups.size(); ++g) {
    const double sum = groups.sum(g);
    if (sum == 0) continue;  // its candidates have weight 0 and are never drawn
    if (kept + sum < enough && groups.least_weight(g) >= least) {
      kept += sum, any = true;
      continue;
    }
    Descending& members = groups.members(g);
    for (size_t i = 0; i < members.size(); ++i, any = true) {
      if (any && (kept >= enough || members[i].weight < least)) return {g, i, kept};
      kept += members[i].weight;
    }
  }
  return {groups.size(), 0, kept};
}

// Returns the candidate at cumulative weight `target`. Returns the last one if rounding in another order leaves a
// remainder.
int32_t found(Groups& groups, const End& end, double target) {
  double reached = 0;
  size_t last = 0;
  const auto count = [&](size_t g) { return g == end.group ? end.members : groups.members(g).size(); };
  for (size_t g = 0; g < groups.size() && g <= end.group; ++g) {
    if (groups.sum(g) == 0 || (g == end.group && end.members == 0)) continue;
    last = g;
    if (g < end.group && reached + groups.sum(g) <= target) {
      reached += groups.sum(g);
      continue;
    }
    Descending& members = groups.members(g);
    for (size_t i = 0; i < count(g) && members[i].weight > 0; ++i) {
      reached += members[i].weight;
      if (target < reached) return members[i].id;
    }
  }
  Descending& members = groups.members(last);
  size_t i = count(last);
  while (i > 1 && members[i - 1].weight == 0) --i;
  return i > 0 ? members[i - 1].id : 0;
}

// Returns the id drawn by p.uniform. p.temperature must be positive.
int32_t drawn(const Row& row, const TokenDraw& p, int threads) {
  const bool few = p.top_k > 0 && static_cast<size_t>(p.top_k) < row.logits.size();
  Groups groups = few ? Groups(first_weighted(row, static_cast<size_t>(p.top_k))) : Groups(row, threads);
  End end{groups.size(), 0, groups.sum()};
  if (p.top_p < 1 || p.min_p > 0) {
    const double of = few && p.top_p < 1 && p.top_p_of == TopPOf::kAll ? Groups(row, threads).sum() : end.sum;
    end = end_of(groups, static_cast<double>(p.top_p) * of, static_cast<double>(p.min_p));  // largest weight: 1
  }
  return found(groups, end, p.uniform * end.sum);
}

}  // namespace

void sample_tokens(const SampleTokensArgs& a, const OpContext& context) {
  check(a);
  const auto* draws = static_cast<const TokenDraw*>(a.draws.data());
  const auto* best = static_cast<const int32_t*>(a.best.data());
  const auto logits = a.logits.as<const float, 2>("logits"), stats = a.stats.as<const float, 2>("stats");
  const int of_a_row = a.logits.dim(0) == 1 ? context.threads : 1;
  parallel_for(context.threads, a.logits.dim(0), [&](int64_t r) {
    const std::span<const float> row(logits.row(r), static_cast<size_t>(a.vocab));
    const float largest = stats(r, 0);
    const TokenDraw& draw = draws[r];
    const int32_t id = draw.temperature > 0 ? drawn({row, largest, draw.temperature, a.excluded_id}, draw, of_a_row)
                                            : best[r * a.best.stride(0)];
    static_cast<int32_t*>(a.ids.data())[r] = id;
    static_cast<float*>(a.chosen.data())[r] = row[static_cast<size_t>(id)];
  });
}

}  // namespace headrace::cpu
