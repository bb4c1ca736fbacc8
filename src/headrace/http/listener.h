// A socket that connections come to.
#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/http/connection_set.h"

namespace headrace {

// Open sockets that listen. Not yet those of a Listener.
struct ListeningSocket {
  int fd;
  uint16_t port;     // 0 of a Unix socket
  std::string path;  // of a Unix socket
};

// Binds every address of the config. Errors: kIo, and an address in use as is_address_in_use() tells.
std::vector<ListeningSocket> open_listening_sockets(const HttpServerConfig& config);

// Gives the set what it accepts. Used on the event loop. Removes its Unix socket's path at the end.
class Listener {
 public:
  Listener(boost::asio::io_context& io, ListeningSocket socket, ConnectionSet& set);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  void listen();                                 // again, behind a pause too; needs no call after the first otherwise
  bool is_paused() const { return is_paused_; }  // no file or memory is left for a connection
  void close();

 private:
  void accept_all();

  boost::asio::posix::basic_stream_descriptor<Connection::Executor> descriptor_;
  const std::string path_;
  ConnectionSet& set_;
  bool is_paused_ = true;
};

}  // namespace headrace
