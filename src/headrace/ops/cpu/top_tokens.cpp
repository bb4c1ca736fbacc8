// One task per row. A row is read once, in chunks. A chunk is skipped if its largest logit is no larger than the last
// kept one: its ids are higher than all kept ones.
#include "headrace/ops/cpu/top_tokens.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "headrace/core/parallel.h"

namespace headrace::cpu {
namespace {

constexpr float kLeast = -std::numeric_limits<float>::infinity();
constexpr size_t kChunk = 256;

constexpr bool is_likelier(const TokenLogit& a, const TokenLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// The likeliest `count` of the tokens that were added, which come in ascending order of ids.
class LikeliestTokens {
 public:
  explicit LikeliestTokens(size_t count) : count_(count) { kept_.reserve(count); }

  bool takes(float logit) const { return kept_.size() < count_ || logit > kept_.front().logit; }
  // Requires takes(logit).
  void add(const TokenLogit& token) {
    if (kept_.size() == count_) {
      std::ranges::pop_heap(kept_, is_likelier);
      kept_.pop_back();
    }
    kept_.push_back(token);
    std::ranges::push_heap(kept_, is_likelier);
  }
  std::vector<TokenLogit> sorted() && {
    std::ranges::sort_heap(kept_, is_likelier);
    return std::move(kept_);
  }

 private:
  size_t count_;
  std::vector<TokenLogit> kept_;  // heap, the last token in front
};

// Returns the largest logit of a chunk; NaN counts as minus infinity. The lanes let the compiler use vectors.
float largest_of_chunk(std::span<const float> logits) {
  std::array<float, 16> lanes;
  lanes.fill(kLeast);
  for (size_t i = 0; i < kChunk; i += lanes.size()) {
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      const float logit = logits[i + lane];
      lanes[lane] = logit > lanes[lane] ? logit : lanes[lane];
    }
  }
  return *std::ranges::max_element(lanes);
}

}  // namespace

std::vector<TokenLogit> likeliest_tokens(std::span<const float> logits, size_t count,
                                         std::optional<int32_t> excluded_id) {
  LikeliestTokens likeliest(std::min(count, logits.size()));
  for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
    const auto chunk = logits.subspan(begin, std::min(kChunk, logits.size() - begin));
    if (chunk.size() == kChunk && !likeliest.takes(largest_of_chunk(chunk))) continue;
    for (size_t i = 0; i < chunk.size(); ++i) {
      float logit = chunk[i];
      if (std::isnan(logit)) logit = kLeast;
      const auto id = static_cast<int32_t>(begin + i);
      if (likeliest.takes(logit) && id != excluded_id) likeliest.add({logit, id});
    }
  }
  return std::move(likeliest).sorted();
}

void top_tokens(const TopTokensArgs& a, const OpContext& context) {
  check(a);
  const auto* rows = static_cast<const int32_t*>(a.rows.data());
  const auto logits = a.logits.as<const float, 2>("logits");
  const auto ids = a.ids.as<int32_t, 2>("ids");
  const auto top = a.top.as<float, 2>("top");
  const auto count = static_cast<size_t>(a.ids.dim(1));
  parallel_for(context.threads, a.rows.numel(), [&](int64_t r) {
    const std::span<const float> row(logits.row(rows[r]), static_cast<size_t>(a.vocab));
    const std::vector<TokenLogit> likeliest = likeliest_tokens(row, count, a.excluded_id);
    std::fill_n(ids.row(r), count, -1);
    std::fill_n(top.row(r), count, kLeast);
    for (size_t i = 0; i < likeliest.size(); ++i) {
      ids.row(r)[i] = likeliest[i].id;
      top.row(r)[i] = row[static_cast<size_t>(likeliest[i].id)];  // may be NaN
    }
  });
}

}  // namespace headrace::cpu
