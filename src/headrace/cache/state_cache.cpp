#include "headrace/cache/state_cache.h"

#include <algorithm>

#include "headrace/core/error.h"

namespace headrace {

void StateCache::keep(std::span<const int32_t> tokens, int32_t slot) {
  HR_ASSERT(!knows(tokens));
  texts_.push_back({{tokens.begin(), tokens.end()}, slot});
}

std::optional<StateCache::State> StateCache::find(std::span<const int32_t> tokens) {
  auto longest = texts_.end();
  for (auto text = texts_.begin(); text != texts_.end(); ++text) {
    if (longest != texts_.end() && text->tokens.size() <= longest->tokens.size()) continue;
    if (text->tokens.size() > tokens.size()) continue;
    if (std::ranges::equal(text->tokens, tokens.first(text->tokens.size()))) longest = text;
  }
  if (longest == texts_.end()) return std::nullopt;
  std::rotate(longest, longest + 1, texts_.end());
  return State{static_cast<int32_t>(texts_.back().tokens.size()), texts_.back().slot};
}

bool StateCache::knows(std::span<const int32_t> tokens) {
  const auto found = std::ranges::find_if(texts_, [&](const Text& t) { return std::ranges::equal(t.tokens, tokens); });
  if (found == texts_.end()) return false;
  std::rotate(found, found + 1, texts_.end());
  return true;
}

std::optional<int32_t> StateCache::drop_oldest() {
  if (texts_.empty()) return std::nullopt;
  const int32_t slot = texts_.front().slot;
  texts_.pop_front();
  return slot;
}

}  // namespace headrace
