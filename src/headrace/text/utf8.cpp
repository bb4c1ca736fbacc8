#include "headrace/text/utf8.h"

#include <cstdint>

namespace headrace {
namespace {

constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

enum class State : uint8_t { kComplete, kInvalid, kCut };
struct Part {
  size_t size;  // bytes of the character, or of the maximal ill-formed part
  State state;
};

// The length that a lead byte announces, and the range of the byte after it (Unicode, table 3-7); length 0: no lead
// byte.
struct Lead {
  size_t size;
  uint8_t low, high;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

Part part_at(std::string_view bytes, size_t at) {
  Lead lead = lead_of(static_cast<uint8_t>(bytes[at]));
  if (lead.size == 0) return {1, State::kInvalid};
  for (size_t i = 1; i < lead.size; ++i) {
    if (at + i == bytes.size()) return {i, State::kCut};
    const auto byte = static_cast<uint8_t>(bytes[at + i]);
    if (byte < lead.low || byte > lead.high) return {i, State::kInvalid};
    lead.low = 0x80, lead.high = 0xBF;
  }
  return {lead.size, State::kComplete};
}

}  // namespace

size_t append_repaired(std::string_view bytes, std::string& out) {
  for (size_t at = 0; at < bytes.size();) {
    const Part part = part_at(bytes, at);
    if (part.state == State::kCut) return part.size;
    if (part.state == State::kComplete) {
      out += bytes.substr(at, part.size);
    } else {
      out += kReplacementBytes;
    }
    at += part.size;
  }
  return 0;
}

std::string repaired(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (append_repaired(bytes, out) > 0) out += kReplacementBytes;
  return out;
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Part part = part_at(bytes, at);
    if (part.state != State::kComplete) return false;
    at += part.size;
  }
  return true;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at++]);
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t code_point = lead & (0x3F >> more);
  for (int i = 0; i < more; ++i) code_point = code_point << 6 | (static_cast<uint8_t>(text[at++]) & 0x3F);
  return code_point;
}

size_t previous_start(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  return at;
}

void append_utf8(char32_t c, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6), tail(0);
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12), tail(6), tail(0);
  } else {
    out += static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0);
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace headrace
