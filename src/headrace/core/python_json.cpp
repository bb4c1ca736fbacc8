#include "headrace/core/python_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace headrace {
namespace {

// NUL in JSON's spelling: no JSON writer begins a string with it.
constexpr std::string_view kMark = "\\u0000";

// Returns the end of the string that begins at `from`.
size_t end_of_string(std::string_view text, size_t from) {
  size_t at = from + 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

size_t end_of_word(std::string_view text, size_t from) {
  return std::min(text.find_first_of(",:[]{}\" \t\r\n", from), text.size());
}

// Returns true if a strict 64-bit parser may reject the number.
bool is_beyond(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  const std::string_view digits = word.substr(word.starts_with('-') ? 1 : 0);
  if (digits.empty() || (digits.size() > 1 && digits[0] == '0' && digits.find_first_of(".eE") != 1)) return false;
  if (digits.find_first_not_of("0123456789") == digits.npos) return digits.size() > 18;
  if (digits.find_first_not_of("0123456789.eE+-") != digits.npos) return false;
  const std::string copy(word);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  return end == copy.c_str() + copy.size() && std::isinf(value);
}

// Returns true if the word before `end` is a key, which must be a string.
bool is_key(std::string_view text, size_t end) {
  const size_t next = text.find_first_not_of(" \t\r\n", end);
  return next != text.npos && text[next] == ':';
}

}  // namespace

std::optional<std::string> with_marked_numbers(std::string_view text) {
  std::string marked;
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      at = end_of_string(text, at);
      continue;
    }
    const size_t end = end_of_word(text, at);
    const std::string_view word = text.substr(at, end - at);
    if (is_beyond(word) && !is_key(text, end)) {
      marked.append(text, copied, at - copied).append("\"").append(kMark).append(word).append("\"");
      copied = end;
    }
    at = std::max(end, at + 1);
  }
  if (copied == 0) return std::nullopt;
  return marked.append(text, copied);
}

std::optional<std::string_view> marked_number(std::string_view string) {
  if (!string.starts_with('\0') || !is_beyond(string.substr(1))) return std::nullopt;
  return string.substr(1);
}

}  // namespace headrace
