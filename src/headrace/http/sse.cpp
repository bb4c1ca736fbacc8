#include "headrace/http/sse.h"

#include <algorithm>

namespace headrace {
namespace {

// Text behind a line end would be read as a field of its own.
std::string lines_with(std::string_view prefix, std::string_view text) {
  std::string out;
  out.reserve(prefix.size() + text.size() + 2);
  for (;;) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    out.append(prefix).append(text.substr(0, end)) += '\n';
    if (end == text.size()) break;
    text.remove_prefix(text.substr(end).starts_with("\r\n") ? end + 2 : end + 1);
  }
  return out += '\n';
}

}  // namespace

std::string sse_event(std::string_view data) { return lines_with("data: ", data); }
std::string sse_comment(std::string_view text) { return lines_with(": ", text); }

}  // namespace headrace
