#include "headrace/http/connection_set.h"

#include <algorithm>
#include <random>
#include <utility>

namespace headrace {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxRefusedConnections = 1024;  // that wait for their 503 at a time
constexpr size_t kMaxIdLength = 128;

std::string hex_of(uint64_t number, size_t digits) {
  std::string out(digits, '0');
  for (size_t i = digits; i-- > 0; number >>= 4) out[i] = "0123456789abcdef"[number & 15];
  return out;
}

bool is_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdLength &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

ConnectionSet::ConnectionSet(const HttpServerConfig& config, HttpHandler handler, HttpErrorBody error_body,
                             std::shared_ptr<WakeList> wakes)
    : config_(config),
      handler_(std::move(handler)),
      error_body_(std::move(error_body)),
      wakes_(std::move(wakes)),
      scratch_(kReadBytes) {
  std::random_device random;
  id_prefix_ = str("req-", hex_of((uint64_t{random()} << 32) | random(), 16));
}

void ConnectionSet::add(Connection::Socket socket, std::string peer) {
  if (connections_.size() >= static_cast<size_t>(config_.max_connections) + kMaxRefusedConnections)
    return;  // closes it
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), std::move(peer));
  connection->index = connections_.size();
  connection->is_admitted = num_connections_ < config_.max_connections;
  connections_.push_back(connection);
  if (connection->is_admitted) ++num_connections_;
  try {
    if (!connection->is_admitted) {
      connection->refuse(
          {503, str("the server has ", config_.max_connections, " connections, the most that it takes")});
    }
    connection->start();
  } catch (...) {
    connection->close();
  }
}

void ConnectionSet::remove(const Connection& connection) {
  const size_t index = connection.index;
  if (connection.is_admitted) --num_connections_;
  std::swap(connections_[index], connections_.back());
  connections_[index]->index = index;
  connections_.pop_back();
}

void ConnectionSet::deliver_all() {
  for (std::shared_ptr<ResponseChannel> channel = wakes_->take(), next; channel; channel = std::move(next)) {
    next = channel->take_next();  // before it can be added again
    if (channel->connection() == nullptr) continue;
    const auto connection = channel->connection()->shared_from_this();
    try {
      connection->deliver();
    } catch (...) {
      connection->close();
    }
  }
}

// From the back: a connection that ends is replaced by the last one, which has been checked.
void ConnectionSet::check_deadlines() {
  const auto now = Connection::Clock::now();
  for (size_t i = connections_.size(); i-- > 0;) {
    const auto connection = connections_[i];
    try {
      connection->check_deadlines(now);
    } catch (...) {
      connection->close();
    }
  }
}

void ConnectionSet::end_idle() {
  is_ending_ = true;
  for (size_t i = connections_.size(); i-- > 0;) std::shared_ptr(connections_[i])->end_if_idle();
}

void ConnectionSet::close_all() {
  while (!connections_.empty()) std::shared_ptr(connections_.back())->close();
}

std::string ConnectionSet::error_body(const HttpRefusal& why) const {
  try {
    return error_body_(why.status, why.message);
  } catch (...) {
    return {};
  }
}

const std::string& ConnectionSet::date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_time_) date_ = http_date(now), date_time_ = now;
  return date_;
}

std::string ConnectionSet::id_of(const HttpRequest& request) {
  const std::string* const id = request.header("x-request-id");
  return id != nullptr && is_id(*id) ? *id : id_prefix_ + hex_of(++num_ids_, 8);
}

void ConnectionSet::begin_response() {
  ++num_requests_;
  const std::lock_guard lock(mutex_);
  ++num_responses_;
}

void ConnectionSet::end_response() {
  const std::lock_guard lock(mutex_);
  if (--num_responses_ == 0) idle_.notify_all();
}

bool ConnectionSet::wait_until_idle(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, time, [&] { return num_responses_ == 0; });
}

HttpServer::Stats ConnectionSet::stats() const {
  return {.connections = num_connections_, .requests = num_requests_, .refused_requests = num_refused_};
}

}  // namespace headrace
