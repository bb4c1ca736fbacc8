// Lines of OpenAI's batch files: requests and results.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/serve/request_error.h"

namespace headrace {

class JsonNode;

// {"custom_id": ..., "method": "POST", "url": "/v1/completions", "body": {...}}
class BatchLine {
 public:
  // Throws RequestError 400 unless the line is a JSON object.
  explicit BatchLine(std::string_view text);
  BatchLine(const BatchLine&) = delete;
  BatchLine& operator=(const BatchLine&) = delete;
  ~BatchLine();

  const std::optional<std::string>& custom_id() const { return custom_id_; }  // absent: none, or no string
  bool is_chat() const;                                                       // the url is /v1/chat/completions
  // Returns the request's body, for completion_work() or chat_work(). Throws RequestError 400 if the custom_id is
  // absent, or if the line is not a POST to one of the two urls with a body.
  const JsonNode& body() const;

 private:
  struct Members;

  std::unique_ptr<const Members> members_;
  std::optional<std::string> custom_id_;
};

// A line's result.
struct BatchResult {
  int64_t line = 0;  // in the file, from 1
  std::optional<std::string> custom_id;
  int status = 200;  // of HTTP
  std::string body;  // JSON: the response, or the error
};

// Returns the digits that make the ids of a line's response. The same line has the same ones in each run.
std::string batch_line_id(int64_t line, const std::optional<std::string>& custom_id);
// Returns {"id": ..., "custom_id": ..., "response": {"status_code": ..., "request_id": ..., "body": ...}, "error":
// null} without a line break.
std::string json_of(const BatchResult& result);

}  // namespace headrace
