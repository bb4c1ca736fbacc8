// Server-sent events, the format of streamed answers. Source: WHATWG HTML, "Server-sent events".
#pragma once
#include <string>
#include <string_view>

namespace headrace {

inline constexpr std::string_view kSseContentType = "text/event-stream";

// Returns an event of `data`, with a "data: " line for each line of it. LF, CR and CRLF end a line; clients join the
// lines by LF.
std::string sse_event(std::string_view data);

// Returns a comment, which clients ignore: it shows them, and proxies between, that the stream lives.
std::string sse_comment(std::string_view text);

}  // namespace headrace
