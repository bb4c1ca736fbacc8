#include "headrace/text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"

namespace headrace {

Vocabulary::Vocabulary(std::vector<Entry> entries) {
  // Ids may have gaps, but one absurd id must not allocate gigabytes.
  const int64_t limit = 2 * static_cast<int64_t>(entries.size()) + 65536;
  int64_t size = 0;
  for (const Entry& e : entries) {
    HR_REQUIRE(e.id >= 0 && e.id < limit, ErrorCode::kModelFile, "token '", printable(e.token), "' has id ", e.id,
               ", expected 0 to ", limit - 1, " for ", entries.size(), " tokens");
    size = std::max(size, int64_t{e.id} + 1);
  }
  tokens_.resize(static_cast<size_t>(size));
  slots_.resize(std::bit_ceil(2 * entries.size() + 1));
  for (Entry& e : entries) {
    std::string& slot = tokens_[static_cast<size_t>(e.id)];
    HR_REQUIRE(slot.empty() || slot == e.token, ErrorCode::kModelFile, "tokens '", printable(slot), "' and '",
               printable(e.token), "' both have id ", e.id);
    if (slot.empty()) slot = std::move(e.token);
    const uint32_t hash = hash_of(slot);
    Slot& entry = slots_[slot_of(slot, hash)];
    HR_REQUIRE(entry.id == kEmpty || entry.id == e.id, ErrorCode::kModelFile, "token '", printable(slot), "' has ids ",
               entry.id, " and ", e.id);
    entry = {hash, e.id};
  }
}

uint32_t Vocabulary::hash_of(std::string_view token) {
  return static_cast<uint32_t>(std::hash<std::string_view>()(token));
}

size_t Vocabulary::slot_of(std::string_view token, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].id != kEmpty && (slots_[i].hash != hash || this->token(slots_[i].id) != token)) i = (i + 1) & mask;
  return i;
}

std::optional<int32_t> Vocabulary::id_of(std::string_view token) const {
  const int32_t id = slots_[slot_of(token, hash_of(token))].id;
  return id == kEmpty ? std::nullopt : std::optional(id);
}

std::string_view Vocabulary::token(int32_t id) const {
  return id >= 0 && id < size() ? std::string_view(tokens_[static_cast<size_t>(id)]) : std::string_view();
}

}  // namespace headrace
