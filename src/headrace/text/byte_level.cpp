#include "headrace/text/byte_level.h"

#include <array>
#include <charconv>

#include "headrace/text/utf8.h"

namespace headrace {
namespace {

constexpr char32_t kFirstMoved = 0x100;  // the spelling of byte 0
constexpr size_t kNumMoved = 68;

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteSpellings {
  std::array<char32_t, 256> of_byte{};
  std::array<uint8_t, kNumMoved> moved{};
};

constexpr ByteSpellings make_spellings() {
  ByteSpellings spellings;
  size_t num_moved = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const auto i = static_cast<size_t>(byte);
    if (stands_for_itself(byte)) {
      spellings.of_byte[i] = static_cast<char32_t>(byte);
    } else {
      spellings.of_byte[i] = kFirstMoved + static_cast<char32_t>(num_moved);
      spellings.moved[num_moved++] = static_cast<uint8_t>(byte);
    }
  }
  return spellings;
}

constexpr ByteSpellings kSpellings = make_spellings();
static_assert(kSpellings.of_byte[' '] == 0x120 && kSpellings.of_byte[0xAD] == kFirstMoved + kNumMoved - 1);

}  // namespace

char32_t spelling_of_byte(uint8_t byte) { return kSpellings.of_byte[byte]; }

std::string spelled(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(spelling_of_byte(static_cast<uint8_t>(byte)), out);
  return out;
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string out;
  out.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const char32_t c = next_code_point(spelling, at);
    if (c < 0x100 && stands_for_itself(static_cast<int>(c))) {
      out += static_cast<char>(c);
    } else if (c >= kFirstMoved && c < kFirstMoved + kNumMoved) {
      out += static_cast<char>(kSpellings.moved[c - kFirstMoved]);
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::string fallback_spelling(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

std::optional<uint8_t> byte_of_fallback(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || !spelling.ends_with('>')) return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(spelling.data() + 3, spelling.data() + 5, byte, 16);
  return error == std::errc() && end == spelling.data() + 5 ? std::optional(byte) : std::nullopt;
}

}  // namespace headrace
