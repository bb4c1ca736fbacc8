// Turns a connection's bytes into requests. It knows nothing of sockets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "headrace/http/http_server.h"

namespace headrace {

struct HttpLimits {
  size_t max_header_bytes = 32 << 10;  // of the request line and all headers
  int32_t max_headers = 100;
  size_t max_body_bytes = 32 << 20;
};

// An answer of the server itself. The connection ends behind it: where the next request begins is not certain.
struct HttpRefusal {
  int status = 400;
  std::string message = {};
};

// Parses one request. It is strict where lenience lets two programs disagree about where a request ends: one
// Content-Length or one "Transfer-Encoding: chunked", no folded lines, CRLF alone. Not thread-safe.
class RequestParser {
 public:
  enum class State { kHead, kBody, kComplete, kRefused };

  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Removes the request's bytes from the front of `input`. Bytes behind a complete request stay: they are the next
  // one's.
  State parse(std::string& input);

  const HttpRefusal& refusal() const;  // of kRefused
  // The head, from kBody on; the body, once it is complete. Of kRefused: what was read before.
  HttpRequest& request();
  bool expects_continue() const;  // from kBody on: the client waits for "100 Continue" before it sends the body
  bool is_http11() const;         // from kBody on
  bool keeps_alive() const;       // from kBody on: the client may send another request

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace
