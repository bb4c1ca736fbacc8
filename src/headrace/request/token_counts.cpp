#include "headrace/request/token_counts.h"

#include <algorithm>

namespace headrace {

void TokenCounts::add(int32_t id) {
  const auto [at, is_new] = indices_.try_emplace(id, ids_.size());
  if (is_new) ids_.push_back(id), counts_.push_back(0);
  ++counts_[at->second];
}

// The last token takes the place of one that no longer occurs.
void TokenCounts::remove(int32_t id) {
  const auto at = indices_.find(id);
  const size_t index = at->second;
  if (--counts_[index] > 0) return;
  indices_[ids_.back()] = index;
  ids_[index] = ids_.back(), counts_[index] = counts_.back();
  ids_.pop_back(), counts_.pop_back();
  indices_.erase(id);
}

void TokenCounts::update(std::span<const int32_t> tokens, int32_t num_final, std::optional<int32_t> open_id) {
  if (tokens.size() < num_final_) *this = {};
  const std::span<const int32_t> now = tokens.subspan(num_final_);
  rest_.resize(std::max(now.size(), rest_.size()));
  for (size_t i = 0; i < rest_.size(); ++i) {
    const auto after = i < now.size() && now[i] != open_id ? std::optional(now[i]) : std::nullopt;
    if (rest_[i] == after) continue;
    if (rest_[i]) remove(*rest_[i]);
    if (after) add(*after);
    rest_[i] = after;
  }
  const size_t more = std::min(static_cast<size_t>(num_final), tokens.size()) - num_final_;
  rest_.resize(now.size());
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(more));
  num_final_ += more;
}

}  // namespace headrace
