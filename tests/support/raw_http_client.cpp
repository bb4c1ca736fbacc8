#include "support/raw_http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "headrace/core/error.h"

namespace headrace::testing_support {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

int connected_socket(int family, const sockaddr* address, socklen_t size, int receive_buffer_bytes) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  const int one = 1;
  if (family == AF_INET) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (fd >= 0 && connect(fd, address, size) == 0) return fd;
  const int error = errno;
  ::close(fd);
  throw Error(ErrorCode::kIo, str("cannot connect: ", std::generic_category().message(error)));
}

milliseconds time_until(Clock::time_point until) {
  return std::max(std::chrono::duration_cast<milliseconds>(until - Clock::now()), milliseconds(0));
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

size_t number_of(std::string_view text, int base) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  HR_REQUIRE(error == std::errc() && end == text.data() + text.size(), ErrorCode::kInvalidArgument, "'", text,
             "' is no number");
  return value;
}

}  // namespace

std::string RawHttpResponse::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

RawHttpClient::RawHttpClient(uint16_t port, int receive_buffer_bytes) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  fd_ = connected_socket(AF_INET, reinterpret_cast<const sockaddr*>(&address), sizeof(address), receive_buffer_bytes);
}

RawHttpClient::RawHttpClient(const std::string& unix_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, unix_path.data(), std::min(unix_path.size(), sizeof(address.sun_path) - 1));
  fd_ = connected_socket(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address), 0);
}

RawHttpClient::~RawHttpClient() { close(); }

RawHttpClient::RawHttpClient(RawHttpClient&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), waiting_(std::move(other.waiting_)), has_ended_(other.has_ended_) {}

bool RawHttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(size));
  }
  return true;
}

bool RawHttpClient::receive(milliseconds time) {
  if (has_ended_) return false;
  pollfd state{.fd = fd_, .events = POLLIN, .revents = 0};
  if (poll(&state, 1, static_cast<int>(time.count())) <= 0) return false;
  std::array<char, 65536> bytes{};
  const ssize_t size = recv(fd_, bytes.data(), bytes.size(), 0);
  if (size <= 0) {
    has_ended_ = true;
    return false;
  }
  waiting_.append(bytes.data(), static_cast<size_t>(size));
  return true;
}

std::string RawHttpClient::receive_until(std::string_view end, milliseconds time) {
  const Clock::time_point until = Clock::now() + time;
  size_t at = 0;
  while ((at = waiting_.find(end)) == waiting_.npos && receive(time_until(until))) {
  }
  at = at == waiting_.npos ? waiting_.size() : at + end.size();
  std::string taken = waiting_.substr(0, at);
  waiting_.erase(0, at);
  return taken;
}

std::optional<std::string> RawHttpClient::line(Clock::time_point until) {
  std::string text = receive_until("\r\n", time_until(until));
  if (!text.ends_with("\r\n")) return std::nullopt;
  text.resize(text.size() - 2);
  return text;
}

bool RawHttpClient::take(std::string& out, size_t bytes, Clock::time_point until) {
  while (waiting_.size() < bytes && receive(time_until(until))) {
  }
  bytes = std::min(bytes, waiting_.size());
  out.append(waiting_, 0, bytes);
  waiting_.erase(0, bytes);
  return true;
}

bool RawHttpClient::read_body(RawHttpResponse& response, Clock::time_point until) {
  if (response.header("transfer-encoding") == "chunked") {
    while (const auto size_text = line(until)) {
      const size_t size = number_of(*size_text, 16), before = response.body.size();
      take(response.body, size, until);
      if (response.body.size() - before < size || !line(until)) return false;
      if (size == 0) return true;
    }
    return false;
  }
  if (const std::string length = response.header("content-length"); !length.empty()) {
    const size_t size = number_of(length, 10);
    take(response.body, size, until);
    return response.body.size() == size;
  }
  response.body += receive_all(time_until(until));
  return has_ended_;
}

RawHttpResponse RawHttpClient::response(milliseconds time, std::string_view method) {
  const Clock::time_point until = Clock::now() + time;
  RawHttpResponse response;
  do {
    const auto status_line = line(until);
    if (!status_line || !status_line->starts_with("HTTP/1.1 ")) return {};
    response = {.status = static_cast<int>(number_of(status_line->substr(9, 3), 10))};
    for (auto header = line(until); header && !header->empty(); header = line(until)) {
      const size_t colon = header->find(": ");
      if (colon == header->npos) return {};
      response.headers.emplace_back(lower(header->substr(0, colon)), header->substr(colon + 2));
    }
  } while (response.status / 100 == 1);
  const bool has_body = method != "HEAD" && response.status != 204 && response.status != 304;
  response.is_complete = !has_body || read_body(response, until);
  return response;
}

std::string RawHttpClient::receive_all(milliseconds time) {
  const Clock::time_point until = Clock::now() + time;
  while (receive(time_until(until))) {
  }
  return std::exchange(waiting_, {});
}

bool RawHttpClient::is_closed(milliseconds time) {
  receive_all(time);
  return has_ended_;
}

void RawHttpClient::end_sending() { shutdown(fd_, SHUT_WR); }

void RawHttpClient::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void RawHttpClient::reset() {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  close();
}

std::string raw_request(std::string_view method, std::string_view target, std::string_view body,
                        std::string_view more_headers) {
  std::string out = str(method, " ", target, " HTTP/1.1\r\nHost: localhost\r\n", more_headers);
  if (!body.empty()) out += str("Content-Length: ", body.size(), "\r\n");
  return str(out, "\r\n", body);
}

}  // namespace headrace::testing_support
