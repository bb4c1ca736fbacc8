#include "http/test_server.h"

#include <stdexcept>

namespace headrace::testing_support {

TestServer::TestServer(HttpServerConfig config) {
  config.port = 0;
  server_ = std::make_unique<HttpServer>(
      config, [this](std::shared_ptr<HttpExchange> exchange) { handle(std::move(exchange)); },
      [](int status, std::string_view message) {
        return str("{\"code\":", status, ",\"message\":\"", message, "\"}");
      });
}

void TestServer::handle(std::shared_ptr<HttpExchange> exchange) {
  const HttpRequest& r = exchange->request();
  if (r.path == "/throw") throw std::runtime_error("the handler's");
  if (r.path == "/drop") return;
  if (r.path != "/hold") {
    exchange->respond(200, "text/plain", str(r.method, " ", r.path, " ", r.query, " ", r.body));
    return;
  }
  const std::lock_guard lock(mutex_);
  held_.push_back(std::move(exchange));
  came_.notify_all();
}

std::shared_ptr<HttpExchange> TestServer::held() {
  std::unique_lock lock(mutex_);
  if (!came_.wait_for(lock, RawHttpClient::kTime, [&] { return !held_.empty(); })) {
    throw Error(ErrorCode::kInternal, "no request came");
  }
  auto exchange = std::move(held_.front());
  held_.erase(held_.begin());
  return exchange;
}

}  // namespace headrace::testing_support
