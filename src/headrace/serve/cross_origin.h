// Which web pages may use the server (CORS).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headrace/http/http_server.h"

namespace headrace {

// Const methods are thread-safe.
class CrossOrigin {
 public:
  // `origins`: as browsers send them, "https://example.com"; "localhost": any scheme and port of this machine; "*":
  // all.
  explicit CrossOrigin(std::vector<std::string> origins) : origins_(std::move(origins)) {}

  // True if the request comes from no web page, or from one that may.
  bool allows(const HttpRequest& request) const;
  // The headers of a response to a request that is allowed; none without an Origin.
  HttpHeaders headers(const HttpRequest& request) const;
  // A browser asks before it sends the request itself.
  static bool is_preflight(const HttpRequest& request);
  static HttpHeaders preflight_headers(const HttpRequest& request);  // beside headers()

 private:
  std::vector<std::string> origins_;
};

}  // namespace headrace
