#include "headrace/serve/api_keys.h"

#include <algorithm>
#include <cctype>

namespace headrace {
namespace {

// Reads every byte of `shown`, whatever they are.
bool is_same(std::string_view shown, std::string_view key) {
  size_t difference = shown.size() ^ key.size();
  for (size_t i = 0; i < shown.size(); ++i) {
    difference |= static_cast<unsigned char>(shown[i]) ^ static_cast<unsigned char>(key[i % key.size()]);
  }
  return difference == 0;
}

std::optional<std::string_view> bearer(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return std::nullopt;
  const bool matches = std::ranges::equal(authorization.substr(0, kScheme.size()), kScheme, {},
                                          [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (!matches) return std::nullopt;
  authorization.remove_prefix(std::min(authorization.size(), authorization.find_first_not_of(' ', kScheme.size())));
  return authorization;
}

}  // namespace

std::optional<size_t> ApiKeys::find(std::string_view authorization) const {
  const auto shown = bearer(authorization);
  if (!shown || shown->empty()) return std::nullopt;
  std::optional<size_t> found;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (!keys_[i].empty() && is_same(*shown, keys_[i])) found = i;
  }
  return found;
}

}  // namespace headrace
