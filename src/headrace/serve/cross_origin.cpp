#include "headrace/serve/cross_origin.h"

#include <algorithm>

namespace headrace {
namespace {

// "http://localhost:3000" and what else names this machine.
bool is_local(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  std::string_view host = origin.substr(scheme + 3);
  const size_t behind = host.starts_with('[') ? host.find(']') : host.find(':');
  host = host.starts_with('[') ? host.substr(0, behind + 1) : host.substr(0, behind);
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]" || host.ends_with(".localhost");
}

}  // namespace

bool CrossOrigin::allows(const HttpRequest& request) const {
  const std::string* origin = request.header("origin");
  return origin == nullptr || std::ranges::any_of(origins_, [&](const std::string& allowed) {
           return allowed == "*" || allowed == *origin || (allowed == "localhost" && is_local(*origin));
         });
}

HttpHeaders CrossOrigin::headers(const HttpRequest& request) const {
  const std::string* origin = request.header("origin");
  if (origin == nullptr || !allows(request)) return {};
  return {{"access-control-allow-origin", *origin},
          {"access-control-expose-headers", "x-request-id, retry-after"},
          {"vary", "origin"}};
}

bool CrossOrigin::is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && request.header("origin") != nullptr &&
         request.header("access-control-request-method") != nullptr;
}

HttpHeaders CrossOrigin::preflight_headers(const HttpRequest& request) {
  HttpHeaders headers;
  const std::string* asked = request.header("access-control-request-headers");
  headers.emplace_back("access-control-allow-methods", "GET, POST, OPTIONS");
  headers.emplace_back("access-control-allow-headers", asked != nullptr ? *asked : "authorization, content-type");
  headers.emplace_back("access-control-max-age", "600");
  return headers;
}

}  // namespace headrace
