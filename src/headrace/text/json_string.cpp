#include "headrace/text/json_string.h"

#include <array>
#include <charconv>
#include <cmath>

namespace headrace {

void append_json_string(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (byte < 0x20) {
          out += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(text, out);
  return out;
}

void append_json_number(float value, std::string& out) {
  if (std::isnan(value)) {
    out += "null";
    return;
  }
  constexpr float kInfinite = 9999;
  if (std::isinf(value)) value = std::copysign(kInfinite, value);
  std::array<char, 32> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), end);
}

}  // namespace headrace
