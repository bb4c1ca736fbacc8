// A refused or failed request in the words of OpenAI's API.
#pragma once
#include <string>
#include <string_view>

#include "headrace/core/error.h"

namespace headrace {

// Thrown by the readers of requests. Its code() is kInvalidArgument for statuses below 500, else kInternal.
class RequestError : public Error {
 public:
  // `param`: the field that is wrong, or empty. `api_code`: OpenAI's, such as "model_not_found", or empty.
  RequestError(int status, const std::string& message, std::string param = {}, std::string api_code = {});

  int status() const { return status_; }  // of HTTP
  const std::string& param() const { return param_; }
  const std::string& api_code() const { return api_code_; }
  std::string_view type() const;  // OpenAI's, which follows from the status: "invalid_request_error"
  // Returns {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}.
  std::string json() const;

 private:
  int status_;
  std::string param_, api_code_;
};

// Returns what a client sees of an error of the engine: 400 for its own mistakes, 500 for others. A message that begins
// with the name of a parameter names it as `param`.
RequestError request_error_of(const Error& error);

}  // namespace headrace
