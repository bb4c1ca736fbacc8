// The description of the server's API.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// Returns an OpenAPI 3.1 document. The fields of requests are those of the tables that read them.
std::string openapi_json(std::string_view version);

}  // namespace headrace
