#include "headrace/core/printable.h"

#include <algorithm>

namespace headrace {
namespace {

bool is_within_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// Returns the bytes of the first UTF-8 character of `text`; 1 if it is invalid.
size_t length_of_first(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0xc2 || lead > 0xf4 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const std::string_view rest = text.substr(1, length - 1);
  return rest.size() == length - 1 && std::ranges::all_of(rest, is_within_character) ? length : 1;
}

bool can_be_shown(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead >= 0x20 && lead < 0x7f && lead != '\'';
  return lead != 0xc2 || static_cast<unsigned char>(character[1]) >= 0xa0;  // U+0080 to U+009F are control characters
}

}  // namespace

std::string printable(std::string_view text, int most) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (int shown = 0; !text.empty(); ++shown) {
    if (shown == most) return out + "…";
    const std::string_view character = text.substr(0, length_of_first(text));
    text.remove_prefix(character.size());
    if (can_be_shown(character)) {
      out += character;
      continue;
    }
    for (const char c : character) {
      const auto byte = static_cast<unsigned char>(c);
      out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return out;
}

}  // namespace headrace
