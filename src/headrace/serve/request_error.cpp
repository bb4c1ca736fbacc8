#include "headrace/serve/request_error.h"

#include <utility>

#include "headrace/text/json_string.h"

namespace headrace {
namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status < 500 ? "invalid_request_error" : "server_error";
  }
}

std::string text_or_null(std::string_view text) { return text.empty() ? "null" : json_string(text); }

// Returns the parameter in "top_p is 2, expected ..." and "stop_token_ids: 9, expected ..."; empty for other messages.
std::string parameter_in(std::string_view message) {
  const size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  if (end == std::string_view::npos || end == 0) return "";
  const std::string_view rest = message.substr(end);
  return rest.starts_with(" is ") || rest.starts_with(": ") ? std::string(message.substr(0, end)) : "";
}

}  // namespace

RequestError::RequestError(int status, const std::string& message, std::string param, std::string api_code)
    : Error(status < 500 ? ErrorCode::kInvalidArgument : ErrorCode::kInternal, message),
      status_(status),
      param_(std::move(param)),
      api_code_(std::move(api_code)) {}

std::string_view RequestError::type() const { return type_of(status_); }

std::string RequestError::json() const {
  return str(R"({"error": {"message": )", json_string(what()), R"(, "type": ")", type(), R"(", "param": )",
             text_or_null(param_), R"(, "code": )", text_or_null(api_code_), "}}");
}

RequestError request_error_of(const Error& error) {
  const bool of_client = error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported;
  return of_client ? RequestError(400, error.what(), parameter_in(error.what())) : RequestError(500, error.what());
}

}  // namespace headrace
