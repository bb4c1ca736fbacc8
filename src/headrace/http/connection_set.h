// All connections of a server, and what they share.
#pragma once
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "headrace/http/connection.h"

namespace headrace {

class ConnectionSet {
 public:
  ConnectionSet(const HttpServerConfig& config, HttpHandler handler, HttpErrorBody error_body,
                std::shared_ptr<WakeList> wakes);

  // The event loop.
  void add(Connection::Socket socket, std::string peer);  // beyond the limit it is answered 503
  void remove(const Connection& connection);
  void deliver_all();
  void check_deadlines();
  void end_idle();  // and every other one behind its response
  void close_all();
  bool is_empty() const { return connections_.empty(); }
  bool is_ending() const { return is_ending_; }

  const HttpServerConfig& config() const { return config_; }
  const std::shared_ptr<WakeList>& wakes() const { return wakes_; }
  void handle(std::shared_ptr<HttpExchange> exchange) const { handler_(std::move(exchange)); }
  std::string error_body(const HttpRefusal& why) const;
  std::vector<char>& scratch() { return scratch_; }  // what a read returns; not kept for a connection that is idle
  const std::string& date();
  std::string id_of(const HttpRequest& request);        // the client's, or a new one
  size_t& incoming_bytes() { return incoming_bytes_; }  // of bodies that are not complete
  void begin_response();
  void end_response();
  void count_refusal() { ++num_refused_; }

  // Any thread.
  bool wait_until_idle(std::chrono::milliseconds time);
  HttpServer::Stats stats() const;

 private:
  const HttpServerConfig config_;
  const HttpHandler handler_;
  const HttpErrorBody error_body_;
  const std::shared_ptr<WakeList> wakes_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<char> scratch_;
  bool is_ending_ = false;
  size_t incoming_bytes_ = 0;
  std::string date_;
  std::time_t date_time_ = 0;
  std::string id_prefix_;
  uint64_t num_ids_ = 0;
  std::atomic<int32_t> num_connections_{0};  // admitted ones
  std::atomic<int64_t> num_requests_{0}, num_refused_{0};
  std::mutex mutex_;
  std::condition_variable idle_;
  int64_t num_responses_ = 0;  // that are being made or sent
};

}  // namespace headrace
