// Pieces of a stream of server-sent events, as OpenAI's API has them.
#pragma once
#include <string>
#include <string_view>

#include "headrace/serve/request_error.h"

namespace headrace {

inline constexpr std::string_view kEventBegin = "data: ", kEventEnd = "\n\n", kLastEvent = "data: [DONE]\n\n";

// The error, and the end behind it: a stream never ends without a word.
inline void append_error_event(const RequestError& error, std::string& out) {
  out += kEventBegin;
  out += error.json();
  out += kEventEnd;
  out += kLastEvent;
}

}  // namespace headrace
