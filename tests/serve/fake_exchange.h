// An HTTP exchange without a socket.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "headrace/http/http_server.h"

namespace headrace::testing_support {

// Thread-safe. A client that reads all at once, unless leave_unread() was called.
class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void respond(int status, std::string_view content_type, std::string body, HttpHeaders headers) override {
    const std::lock_guard lock(mutex_);
    status_ = status, type_ = content_type, body_ = std::move(body), headers_ = std::move(headers);
    has_begun_ = has_ended_ = true;
    changed_.notify_all();
  }
  void begin_stream(int status, std::string_view content_type, HttpHeaders headers) override {
    const std::lock_guard lock(mutex_);
    status_ = status, type_ = content_type, headers_ = std::move(headers), has_begun_ = true;
    changed_.notify_all();
  }
  void send(std::string_view piece) override {
    const std::lock_guard lock(mutex_);
    body_ += piece;
    changed_.notify_all();
  }
  void end_stream() override {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }
  size_t unsent_bytes() const override {
    const std::lock_guard lock(mutex_);
    return unread_;
  }
  bool is_closed() const override {
    const std::lock_guard lock(mutex_);
    return is_closed_;
  }
  void on_gone(std::function<void()> gone) override {
    {
      const std::lock_guard lock(mutex_);
      gone_ = gone;
      if (!is_closed_) return;
    }
    gone();
  }

  // The client's side.
  void go() {
    std::function<void()> gone;
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
      gone = gone_;
    }
    if (gone) gone();
  }
  void leave_unread(size_t bytes) {
    const std::lock_guard lock(mutex_);
    unread_ = bytes;
  }
  bool wait_for_end() {
    return wait([this] { return has_ended_; });
  }
  // False if the response ends without it.
  bool wait_for_text(std::string_view text) {
    wait([this, text] { return has_ended_ || body_.find(text) != std::string::npos; });
    return body().find(text) != std::string::npos;
  }
  int status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  std::string type() const {
    const std::lock_guard lock(mutex_);
    return type_;
  }
  std::string body() const {
    const std::lock_guard lock(mutex_);
    return body_;
  }
  bool has_begun() const {
    const std::lock_guard lock(mutex_);
    return has_begun_;
  }
  std::string header(std::string_view name) const {  // of the response
    const std::lock_guard lock(mutex_);
    for (const auto& [key, value] : headers_) {
      if (key == name) return value;
    }
    return "";
  }

 private:
  template <class Condition>
  bool wait(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), condition);
  }

  const HttpRequest request_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int status_ = 0;
  std::string type_, body_;
  HttpHeaders headers_;
  bool has_begun_ = false, has_ended_ = false, is_closed_ = false;
  size_t unread_ = 0;
  std::function<void()> gone_;
};

}  // namespace headrace::testing_support
