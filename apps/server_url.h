// The address of a server.
#pragma once
#include <string>

namespace headrace::app {

struct ServerUrl {
  std::string host, port;
  std::string prefix;  // in front of paths: empty, or with a slash in front and none behind
};

// Reads "http://HOST[:PORT][/PREFIX]"; a prefix of /v1 is left out, as paths have it. Error kInvalidArgument,
// without the flag's name.
ServerUrl server_url(const std::string& text);

}  // namespace headrace::app
