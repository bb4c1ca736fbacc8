#include "headrace/serve/call.h"

#include <utility>

#include "headrace/text/json_string.h"

namespace headrace {

std::string ollama_error_json(std::string_view text) { return str(R"({"error": )", json_string(text), '}'); }

Call::Call(std::shared_ptr<HttpExchange> exchange, ErrorStyle style, HttpHeaders headers, OnEnd on_end)
    : exchange_(std::move(exchange)), style_(style), headers_(std::move(headers)), on_end_(std::move(on_end)) {}

HttpHeaders Call::with_own(HttpHeaders headers) const {
  headers.insert(headers.end(), headers_.begin(), headers_.end());
  return headers;
}

void Call::respond(int status, std::string_view type, std::string body, HttpHeaders headers) {
  exchange_->respond(status, type, std::move(body), with_own(std::move(headers)));
  end(status);
}

void Call::refuse(const RequestError& error, HttpHeaders headers) {
  record.error = error.what();
  record.error_code = error.api_code().empty() ? error.type() : error.api_code();
  std::string body = style_ == ErrorStyle::kOllama ? ollama_error_json(error.what()) : error.json();
  respond(error.status(), "application/json", std::move(body), std::move(headers));
}

void Call::begin_stream(std::string_view type) {
  exchange_->begin_stream(200, type, with_own({{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}}));
}

void Call::end(int status) {
  if (has_ended_.exchange(true)) return;
  const HttpRequest& r = request();
  record.id = r.id, record.peer = r.peer, record.method = r.method, record.path = r.path;
  record.status = status, record.seconds = seconds();
  on_end_(record);
}

}  // namespace headrace
