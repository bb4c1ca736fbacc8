#include "server_url.h"

#include <algorithm>
#include <string_view>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"

namespace headrace::app {

ServerUrl server_url(const std::string& text) {
  constexpr std::string_view kScheme = "http://", kVersion = "/v1";
  const auto refuse = [&text] {
    throw Error(ErrorCode::kInvalidArgument, str("is '", printable(text), "', expected http://HOST[:PORT]"));
  };
  if (!text.starts_with(kScheme)) refuse();
  std::string rest = text.substr(kScheme.size());
  ServerUrl url;
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.prefix = rest.substr(slash), rest.resize(slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  if (url.prefix.ends_with(kVersion)) url.prefix.resize(url.prefix.size() - kVersion.size());
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == rest.npos) refuse();
  const size_t colon = std::min(rest.find(':', bracket), rest.size());
  url.host = bracket > 0 ? rest.substr(1, bracket - 1) : rest.substr(0, colon);
  url.port = colon < rest.size() ? rest.substr(colon + 1) : "80";
  const bool is_number = !url.port.empty() && url.port.find_first_not_of("0123456789") == url.port.npos;
  if (url.host.empty() || !is_number) refuse();
  return url;
}

}  // namespace headrace::app
