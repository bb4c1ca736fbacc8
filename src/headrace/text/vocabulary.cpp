#include "headrace/text/vocabulary.h"

#include <algorithm>

#include "headrace/base/error.h"

namespace headrace {

Vocabulary::Vocabulary(std::vector<Entry> entries) {
  // Ids may have gaps, but one absurd id must not allocate gigabytes.
  const int64_t limit = 2 * static_cast<int64_t>(entries.size()) + 65536;
  int64_t size = 0;
  for (const Entry& e : entries) {
    HR_REQUIRE(e.id >= 0 && e.id < limit, ErrorCode::kModelFile, "token '", e.token, "' has id ", e.id,
               ", expected 0 to ", limit - 1, " for ", entries.size(), " tokens");
    size = std::max(size, int64_t{e.id} + 1);
  }
  tokens_.resize(static_cast<size_t>(size));
  by_token_.reserve(entries.size());
  for (Entry& e : entries) {
    std::string& slot = tokens_[static_cast<size_t>(e.id)];
    HR_REQUIRE(slot.empty() || slot == e.token, ErrorCode::kModelFile, "tokens '", slot, "' and '", e.token,
               "' both have id ", e.id);
    if (slot.empty()) slot = std::move(e.token);
    const auto [at, inserted] = by_token_.try_emplace(slot, e.id);
    HR_REQUIRE(inserted || at->second == e.id, ErrorCode::kModelFile, "token '", slot, "' has ids ", at->second,
               " and ", e.id);
  }
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const auto at = by_token_.find(token);
  if (at == by_token_.end()) return std::nullopt;
  return at->second;
}

std::string_view Vocabulary::token(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(tokens_[static_cast<size_t>(id)]) : std::string_view();
}

}  // namespace headrace
