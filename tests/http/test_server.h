// A server for tests: it echoes requests, or hands their exchanges to the test.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "headrace/http/http_server.h"
#include "support/raw_http_client.h"

namespace headrace::testing_support {

// GET /hold: held() returns the exchange. GET /throw: the handler throws. GET /drop: it forgets the exchange. Others
// are answered with "METHOD PATH QUERY BODY". Listens on a free port.
class TestServer {
 public:
  explicit TestServer(HttpServerConfig config = {});
  HttpServer* operator->() { return server_.get(); }
  uint16_t port() const { return server_->port(); }
  std::shared_ptr<HttpExchange> held();  // the oldest; waits for one
  void stop() { server_.reset(); }

 private:
  void handle(std::shared_ptr<HttpExchange> exchange);

  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::shared_ptr<HttpExchange>> held_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace headrace::testing_support
