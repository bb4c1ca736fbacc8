// One client's connection, on the event loop.
#pragma once
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "headrace/http/exchange.h"
#include "headrace/http/request_parser.h"

namespace headrace {

class ConnectionSet;

// All members are called on the event loop. A connection reads a request, gives it to the handler, writes the response
// and goes on with the next one, which waits until the response before it has been sent.
//
// A client that closes and one that only ends its sending side look alike: both send a FIN. A byte sent to them tells
// them apart, because a closed socket answers it with a reset. So the connection then sends a byte that is due anyway:
// the next one of "HTTP/1.1 ", or within a stream a leading zero of the next chunk's size.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Executor = boost::asio::io_context::executor_type;
  using Socket = boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, Executor>;
  using Clock = std::chrono::steady_clock;

  Connection(ConnectionSet& set, Socket socket, std::string peer);

  void start();
  void refuse(const HttpRefusal& why);  // answers, and ends
  void deliver();                       // writes what has come of the response
  void check_deadlines(Clock::time_point now);
  void end_if_idle();
  void close();

  size_t index = 0;         // in the set
  bool is_admitted = true;  // it counts: not beyond the limit

 private:
  enum class Phase { kIdle, kReading, kServing, kRefusing, kLingering, kClosed };
  struct Response {
    std::shared_ptr<ResponseChannel> channel = {};
    std::string id = {};
    bool is_http11 = true, answers_head = false, keeps_alive = false;
    bool has_head = false, is_stream = false, has_ended = false;  // what has come of it
    size_t num_probes = 0;                                        // bytes of it that were sent to find a closed socket
  };

  void wait(Socket::wait_type type, bool Connection::*is_waiting, void (Connection::*event)());
  void wait_for_input();
  void on_readable();
  void on_error();
  void on_input_end();
  void read_request();
  void on_body_part();
  void count_body(size_t bytes);
  void dispatch();
  void add_head(const ResponseHead& head, std::optional<size_t> content_length);
  void fail_response();
  void finish_response();
  void write();
  void on_blocked();
  void on_progress(size_t bytes);
  void on_written();
  size_t unwritten() const { return backlog_.size() - written_; }
  void probe();
  void linger();
  void cut_off();

  ConnectionSet& set_;
  Socket socket_;
  const std::string peer_;
  Phase phase_ = Phase::kIdle;
  std::string input_;                      // read, and not parsed yet
  std::unique_ptr<RequestParser> parser_;  // of kReading
  std::optional<size_t> body_counted_;     // bytes of its body that the deadline knows of
  size_t body_bytes_ = 0;                  // bytes of its body that the set knows of
  Response response_;                      // of kServing
  std::string backlog_;                    // to be written
  size_t written_ = 0;                     // bytes of the backlog
  size_t progress_ = 0;                    // written bytes that the deadline does not know of
  bool awaits_input_ = false, awaits_output_ = false, awaits_error_ = false;
  bool input_ended_ = false;
  Clock::time_point phase_deadline_, stall_deadline_ = Clock::time_point::max(),
                                     full_deadline_ = Clock::time_point::max();
};

}  // namespace headrace
