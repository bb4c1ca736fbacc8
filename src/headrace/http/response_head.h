// The text in front of a response's body.
#pragma once
#include <cstddef>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/http/http_server.h"

namespace headrace {

struct ResponseHead {
  int status = 200;
  std::string content_type = {};
  HttpHeaders headers = {};  // further ones
};

struct ConnectionHeaders {
  std::string_view request_id, date;
  std::optional<size_t> content_length;  // absent: of a stream
  bool is_http11 = true;
  bool keeps_alive = true;  // the connection goes on behind this response
};

// Every response begins with these bytes, whatever its status.
inline constexpr std::string_view kHttpVersion = "HTTP/1.1 ";

// Returns the status line, all headers and the empty line. Line ends within a header become spaces.
std::string format_head(const ResponseHead& head, const ConnectionHeaders& connection);

bool has_body(int status);  // 204, 304 and 1xx have none
std::string http_date(std::time_t time);

// Adds `piece` as a chunk, or nothing if it is empty: an empty chunk ends a body.
void append_chunk(std::string& out, std::string_view piece);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace headrace
