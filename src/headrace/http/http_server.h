// An HTTP/1.1 server: connections, limits and streams. It knows nothing of models.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/core/error.h"

namespace headrace {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path, query = {};  // the path is percent-decoded
  HttpHeaders headers = {};              // names in lower case, in order
  std::string body = {};
  std::string peer = {};  // address and port
  std::string id = {};    // x-request-id: the client's, or one of our own

  const std::string* header(std::string_view name) const;  // the first one, null if absent
};

// A request and its response. Thread-safe: all members may be called from any thread and return at once. It outlives
// its connection; what is sent after that goes nowhere.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;

  // Sends a whole response. Exactly one of respond() and begin_stream() is called, once.
  virtual void respond(int status, std::string_view content_type, std::string body, HttpHeaders headers = {}) = 0;
  // Sends the head of a response whose body follows in pieces (chunked; for HTTP/1.0 until the connection closes).
  virtual void begin_stream(int status, std::string_view content_type, HttpHeaders headers = {}) = 0;
  // Sends a piece of the body as a chunk. Pieces that wait for the socket are written together.
  virtual void send(std::string_view piece) = 0;
  virtual void end_stream() = 0;

  // Bytes that a slow reader has not taken yet. Who pauses a stream at max_unsent_bytes bounds its memory; nobody else
  // does before `stall_time` is over.
  virtual size_t unsent_bytes() const = 0;
  virtual bool is_closed() const = 0;  // the client is gone, or was cut off
  // `gone` is called once, on the event loop, when the client goes before the response has been sent; at once if it is
  // gone already. It must be short. A client that closes only its sending side is not gone. It is told apart by a byte
  // of the response, sent when its side ends and some times more: "H" of "HTTP/1.1", or within chunks a leading zero of
  // the next size. A closed socket answers with a reset, within a round trip. Not told apart, until something is sent:
  // a client of HTTP/1.0 within a stream; one whose machine or network went silent.
  virtual void on_gone(std::function<void()> gone) = 0;
};

// Called on the event loop with each request whose head and body are complete and within limits. It must be short: work
// goes to other threads. What it throws becomes a 500.
using HttpHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

// Returns the body of an error of the server itself (400, 408, 413, 414, 417, 431, 500, 501, 503, 505), as JSON.
using HttpErrorBody = std::function<std::string(int status, std::string_view message)>;

struct HttpServerConfig {
  std::vector<std::string> hosts = {"127.0.0.1"};  // addresses to listen on
  uint16_t port = 8000;                            // 0: a free one, see HttpServer::port()
  std::string uds = {};                            // a Unix socket's path beside, or instead of, the hosts; empty: none
  int32_t max_connections = 8192;                  // beyond it 503 and close
  size_t max_header_bytes = 32 << 10;              // of the request line and all headers
  int32_t max_headers = 100;
  size_t max_body_bytes = 32 << 20;
  size_t max_incoming_bytes = 1 << 30;            // of all bodies that are still coming; beyond it 503 and close
  std::chrono::milliseconds header_time{10'000};  // for a request's head, from its first byte
  std::chrono::milliseconds body_time{30'000};    // for its body, and again for each KB per second that came
  std::chrono::milliseconds idle_time{75'000};    // between requests
  size_t max_unsent_bytes = 1 << 20;              // of a stream; a reader that leaves them for `stall_time` is cut off
  std::chrono::milliseconds stall_time{30'000};
};

// An error of HttpServer's constructor: another program listens on an address or a Unix socket.
bool is_address_in_use(const Error& error);

// One thread of its own runs the event loop.
class HttpServer {
 public:
  // Listens, and begins to answer. Errors: kIo with the address and the reason; the code of an address in use is told
  // apart (is_address_in_use).
  HttpServer(const HttpServerConfig& config, HttpHandler handler, HttpErrorBody error_body);
  // Closes what is open at once.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  // Accepts no further connections and ends idle ones; responses from now on end their connections.
  void stop_accepting();
  // Returns when all responses have been sent, or the time is over; true if all were.
  bool wait_until_idle(std::chrono::milliseconds time);

  struct Stats {
    int32_t connections = 0;       // open ones, without those beyond the limit
    int64_t requests = 0;          // complete ones so far
    int64_t refused_requests = 0;  // answered by the server itself
  };
  Stats stats() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace headrace
