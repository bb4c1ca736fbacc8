#include "headrace/http/request_target.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "headrace/core/printable.h"

namespace headrace {
namespace {

// Others mean nothing to any resource of ours.
constexpr std::array<std::string_view, 9> kMethods = {"GET",    "HEAD",    "POST",  "PUT",  "PATCH",
                                                      "DELETE", "OPTIONS", "TRACE", "QUERY"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || kMarks.find(c) != kMarks.npos;
  });
}

bool has_blanks(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<uint8_t>(c) <= ' ' || c == 127; });
}

bool is_version(std::string_view text) {
  return text.size() == 8 && text.starts_with("HTTP/") && is_digit(text[5]) && text[6] == '.' && is_digit(text[7]);
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    unsigned byte = 0;
    const char* const last = text.data() + i + 3;
    if (std::from_chars(text.data() + i + 1, last, byte, 16).ptr != last || byte == 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

}  // namespace

std::optional<HttpRefusal> refusal_of_line(std::string_view line) {
  const size_t first = line.find(' '), last = line.rfind(' ');
  const std::string_view method = line.substr(0, first);
  if (first == line.npos || first == last || !is_token(method) || !is_version(line.substr(last + 1))) {
    return HttpRefusal{400, str("the request line is '", printable(line), "', expected METHOD TARGET HTTP/1.1")};
  }
  const std::string_view version = line.substr(last + 1), target = line.substr(first + 1, last - first - 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return HttpRefusal{505, str("the version is ", version, ", expected HTTP/1.1")};
  }
  if (std::ranges::find(kMethods, method) == kMethods.end()) {
    return HttpRefusal{501, str("the method is '", printable(method), "', expected GET, HEAD, POST or OPTIONS")};
  }
  if (!parse_target(target) || (target == "*" && method != "OPTIONS")) {
    return HttpRefusal{400, str("the request's target is '", printable(target), "', expected a path such as /health")};
  }
  return std::nullopt;
}

std::optional<RequestTarget> parse_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {  // as a proxy is asked
    if (!target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    target.remove_prefix(std::min(target.find_first_of("/?"), target.size()));
    if (target.empty()) return RequestTarget{.path = "/", .query = {}};
  }
  if (has_blanks(target)) return std::nullopt;
  const size_t mark = target.find('?');
  const std::string_view path = target.substr(0, mark);
  if (!path.starts_with('/') && target != "*") return std::nullopt;
  std::optional<std::string> decoded = percent_decoded(path);
  if (!decoded) return std::nullopt;
  return RequestTarget{std::move(*decoded), std::string(mark == target.npos ? "" : target.substr(mark + 1))};
}

}  // namespace headrace
