// A client of plain sockets, for tests that send what no library would.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace::testing_support {

struct RawHttpResponse {
  int status = 0;  // 0: the connection ended, or the time was over, before one
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;                                          // without chunks' heads
  bool is_complete = false;

  std::string header(std::string_view name) const;  // empty: absent
};

// One connection to a server on this machine. Times are limits: what does not come by then counts as not coming.
class RawHttpClient {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr Milliseconds kTime{10'000};

  explicit RawHttpClient(uint16_t port, int receive_buffer_bytes = 0);  // of 127.0.0.1; throws Error kIo
  explicit RawHttpClient(const std::string& unix_path);
  ~RawHttpClient();
  RawHttpClient(RawHttpClient&& other) noexcept;
  RawHttpClient& operator=(RawHttpClient&&) = delete;

  bool send(std::string_view bytes);  // all of them; false: the server closed
  // Adds what comes to the bytes that wait. False: the connection has ended or nothing came in time.
  bool receive(Milliseconds time = kTime);
  std::string receive_until(std::string_view end,
                            Milliseconds time = kTime);  // returns and takes what waits up to `end`
  RawHttpResponse response(Milliseconds time = kTime, std::string_view method = "GET");  // interim ones are left out
  RawHttpResponse request(std::string_view bytes) { return send(bytes), response(); }
  std::string receive_all(Milliseconds time = kTime);  // until the server closes

  bool is_closed(Milliseconds time = kTime);  // the server closes within `time`
  void end_sending();                         // a FIN; goes on reading
  void close();                               // a FIN, or a reset if something unread is here
  void reset();
  int fd() const { return fd_; }

 private:
  std::optional<std::string> line(std::chrono::steady_clock::time_point until);
  bool read_body(RawHttpResponse& response, std::chrono::steady_clock::time_point until);
  bool take(std::string& out, size_t bytes, std::chrono::steady_clock::time_point until);

  int fd_ = -1;
  std::string waiting_;
  bool has_ended_ = false;
};

// A request of HTTP/1.1 with a Host, and a Content-Length if there is a body.
std::string raw_request(std::string_view method, std::string_view target, std::string_view body = {},
                        std::string_view more_headers = {});

}  // namespace headrace::testing_support
