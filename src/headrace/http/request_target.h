// The first line of a request.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headrace/http/request_parser.h"

namespace headrace {

// Returns why the server does not serve a request with this first line (without its line end), or nothing.
std::optional<HttpRefusal> refusal_of_line(std::string_view line);

struct RequestTarget {
  std::string path, query;  // the path is percent-decoded
};

// Reads "/path?query", "http://host/path?query" or "*". Nothing: its form or a percent code is wrong, or it encodes a
// NUL.
std::optional<RequestTarget> parse_target(std::string_view target);

}  // namespace headrace
