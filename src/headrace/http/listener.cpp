#include "headrace/http/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/core/scope_end.h"

namespace headrace {
namespace {

constexpr int kMaxAcceptsAtOnce = 64;          // so that connections that are open get their turn
constexpr int kMaxUnsentOfKernel = 128 << 10;  // beyond them a socket counts as full
constexpr int kPortTries = 16;

class AddressInUse final : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void throw_listen_error(const std::string& address, int error) {
  const std::string text = str("cannot listen on ", address, ": ", std::generic_category().message(error));
  if (error == EADDRINUSE) throw AddressInUse(ErrorCode::kIo, text);
  throw Error(ErrorCode::kIo, text);
}

void set_option(int fd, int level, int name, int value) { setsockopt(fd, level, name, &value, sizeof(value)); }

uint16_t port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Returns the socket, or the error in `error`.
int bound_socket(int family, const sockaddr* address, socklen_t size, bool shares_port, int& error) {
  const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  error = errno;
  if (fd < 0) return -1;
  if (family != AF_UNIX) set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (family == AF_INET6 && shares_port) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd, address, size) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  error = errno;
  ::close(fd);
  return -1;
}

// A name such as localhost may have several addresses, and not all of them on this machine.
void open_host(const std::string& host, uint16_t port, bool shares_port, std::vector<ListeningSocket>& out) {
  const std::string address = str(printable(host), " port ", port);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), str(port).c_str(), &hints, &found);
  HR_REQUIRE(status == 0, ErrorCode::kIo, "cannot listen on ", address, ": ", gai_strerror(status));
  const ScopeEnd end([&] { freeaddrinfo(found); });
  const size_t before = out.size();
  int error = 0;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd =
        bound_socket(a->ai_family, a->ai_addr, a->ai_addrlen, shares_port || found->ai_next != nullptr, error);
    if (fd < 0 && error == EADDRINUSE) throw_listen_error(address, error);
    if (fd >= 0) out.push_back({fd, port_of(fd), {}});
  }
  if (out.size() == before) throw_listen_error(address, error);
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  HR_REQUIRE(path.size() < sizeof(address.sun_path), ErrorCode::kInvalidArgument, "the Unix socket's path has ",
             path.size(), " bytes, at most ", sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// A server that was killed leaves its socket behind; nobody answers on it.
bool remove_if_dead(const sockaddr_un& address) {
  struct stat status {};
  if (lstat(address.sun_path, &status) != 0 || !S_ISSOCK(status.st_mode)) return false;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool answers = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const bool is_dead = !answers && errno == ECONNREFUSED;
  ::close(fd);
  return is_dead && unlink(address.sun_path) == 0;
}

ListeningSocket open_unix(const std::string& path) {
  const sockaddr_un address = unix_address(path);
  int error = 0;
  const auto open = [&] {
    return bound_socket(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof(address), false, error);
  };
  int fd = open();
  if (fd < 0 && error == EADDRINUSE && remove_if_dead(address)) fd = open();
  if (fd < 0) throw_listen_error(str("the Unix socket ", printable(path)), error);
  return {fd, 0, path};
}

void close_all(std::vector<ListeningSocket>& sockets) {
  for (const ListeningSocket& socket : sockets) {
    ::close(socket.fd);
    if (!socket.path.empty()) unlink(socket.path.c_str());
  }
  sockets.clear();
}

// With port 0 the first address gets a free port, and the others the same one.
void open_hosts(const HttpServerConfig& config, std::vector<ListeningSocket>& out) {
  uint16_t port = config.port;
  for (const std::string& host : config.hosts) {
    open_host(host, port, config.hosts.size() > 1, out);
    if (port == 0) port = out.front().port;
  }
}

std::string peer_of(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return str(text.data(), ":", ntohs(v4.sin_port));
  }
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
    return str("[", text.data(), "]:", ntohs(v6.sin6_port));
  }
  return "unix";
}

}  // namespace

bool is_address_in_use(const Error& error) { return dynamic_cast<const AddressInUse*>(&error) != nullptr; }

std::vector<ListeningSocket> open_listening_sockets(const HttpServerConfig& config) {
  HR_REQUIRE(!config.hosts.empty() || !config.uds.empty(), ErrorCode::kInvalidArgument,
             "the server has no address to listen on");
  for (int tries = 1;; ++tries) {
    std::vector<ListeningSocket> out;
    try {
      open_hosts(config, out);
      if (!config.uds.empty()) out.push_back(open_unix(config.uds));
      return out;
    } catch (const AddressInUse&) {
      const bool may_choose = config.port == 0 && config.hosts.size() > 1 && !out.empty() && tries < kPortTries;
      close_all(out);
      if (!may_choose) throw;
    } catch (...) {
      close_all(out);
      throw;
    }
  }
}

Listener::Listener(boost::asio::io_context& io, ListeningSocket socket, ConnectionSet& set)
    : descriptor_(io, socket.fd), path_(std::move(socket.path)), set_(set) {}

Listener::~Listener() { close(); }

void Listener::listen() {
  if (!descriptor_.is_open()) return;
  is_paused_ = true;  // unless this succeeds
  descriptor_.async_wait(descriptor_.wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    is_paused_ = true;
    accept_all();
  });
  is_paused_ = false;
}

void Listener::accept_all() {
  for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int fd = accept4(descriptor_.native_handle(), reinterpret_cast<sockaddr*>(&address), &size,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) return;  // paused
    if (fd < 0) continue;  // that client is gone
    if (address.ss_family != AF_UNIX) {
      set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
      set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kMaxUnsentOfKernel);
    }
    Connection::Socket socket(descriptor_.get_executor());
    boost::system::error_code error;
    socket.assign({address.ss_family, 0}, fd, error);
    if (error) {
      ::close(fd);
      continue;
    }
    socket.non_blocking(true, error);
    set_.add(std::move(socket), peer_of(address));
  }
  listen();
}

void Listener::close() {
  if (!descriptor_.is_open()) return;
  boost::system::error_code error;
  descriptor_.close(error);
  is_paused_ = false;
  if (!path_.empty()) unlink(path_.c_str());
}

}  // namespace headrace
