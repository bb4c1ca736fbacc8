// An HTTP request on its way through the server: answered once, then counted and logged.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "headrace/http/http_server.h"
#include "headrace/serve/request_error.h"
#include "headrace/serve/response.h"

namespace headrace {

// The record of a request that has ended. It holds neither keys nor, unless the server was asked to, texts.
struct RequestRecord {
  std::string id, peer, method, path;
  int status = 0;          // of HTTP; 499: the client went before it was answered
  std::string error;       // one sentence; empty: none
  std::string error_code;  // an API's, or its type
  double seconds = 0;      // until the end of the response
  std::optional<double> first_token_s = {};
  std::optional<Response::Usage> usage = {};
  std::string finish_reason;
  std::string params;         // what was asked for besides the texts
  std::string input, output;  // texts
};

// The form of errors.
enum class ErrorStyle : uint8_t { kOpenAI, kOllama };

// Thread-safe.
class Call {
 public:
  using Clock = std::chrono::steady_clock;
  using OnEnd = std::function<void(const RequestRecord&)>;

  // `headers`: of the response, beside its own. `on_end` is called once, on the thread that ends the call.
  Call(std::shared_ptr<HttpExchange> exchange, ErrorStyle style, HttpHeaders headers, OnEnd on_end);

  const HttpRequest& request() const { return exchange_->request(); }
  HttpExchange& exchange() { return *exchange_; }
  Clock::time_point begin() const { return begin_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  std::optional<size_t> key;  // that the client showed
  RequestRecord record;       // of whoever handles the call now

  void respond(int status, std::string_view type, std::string body, HttpHeaders headers = {});
  void respond_json(std::string body) { respond(200, "application/json", std::move(body)); }
  void refuse(const RequestError& error, HttpHeaders headers = {});
  void begin_stream(std::string_view type);
  // Ends the call without a response, or behind the stream that was begun.
  void end(int status);

 private:
  HttpHeaders with_own(HttpHeaders headers) const;

  std::shared_ptr<HttpExchange> exchange_;
  ErrorStyle style_;
  HttpHeaders headers_;
  OnEnd on_end_;
  Clock::time_point begin_ = Clock::now();
  std::atomic<bool> has_ended_ = false;
};

// Returns `text`, an error's message, as Ollama's API has it.
std::string ollama_error_json(std::string_view text);

}  // namespace headrace
