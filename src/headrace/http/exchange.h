// A response on its way from any thread to the event loop.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/http/http_server.h"
#include "headrace/http/response_head.h"

namespace headrace {

class Connection;
class ResponseChannel;

// The responses that have something to send. One wake-up of the event loop serves all that come before it runs.
class WakeList {
 public:
  explicit WakeList(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~WakeList() { close(); }
  WakeList(const WakeList&) = delete;
  WakeList& operator=(const WakeList&) = delete;

  // Any thread. Without memory for the wake-up it comes with the next one, or with the loop's own checks.
  void add(std::shared_ptr<ResponseChannel> channel) noexcept;
  std::shared_ptr<ResponseChannel> take();  // the event loop: the first of a list; see ResponseChannel::take_next
  void close();                             // nothing is woken from here on: the event loop ends

 private:
  std::mutex mutex_;
  std::shared_ptr<ResponseChannel> first_;
  ResponseChannel* last_ = nullptr;
  bool is_awake_ = false;
  std::function<void()> wake_;
};

enum class BodyFraming {
  kChunked,
  kUntilClose,  // a stream for HTTP/1.0
  kNone,        // the answer to HEAD
};

// The parts of a response so far. Its writers are on any thread; its connection reads it on the event loop.
class ResponseChannel : public std::enable_shared_from_this<ResponseChannel> {
 public:
  struct Output {
    std::optional<ResponseHead> head;      // once
    std::optional<size_t> content_length;  // of a whole response
    std::string bytes;
    bool has_ended = false;
    bool has_failed = false;  // the response ends here, unfinished
  };

  ResponseChannel(std::shared_ptr<WakeList> wakes, Connection& connection, BodyFraming framing)
      : wakes_(std::move(wakes)), framing_(framing), connection_(&connection) {}

  // Any thread.
  void respond(ResponseHead head, std::string body);
  void begin_stream(ResponseHead head);
  void send(std::string_view piece);
  void end_stream();
  void fail() noexcept;  // unless the response has ended
  size_t unsent_bytes() const;
  bool is_closed() const { return is_closed_.load(std::memory_order_relaxed); }
  void on_gone(std::function<void()> gone);

  // The event loop.
  Connection* connection() const { return connection_; }  // null: it is closed
  Output take();
  std::shared_ptr<ResponseChannel> take_next() { return std::move(next_); }  // of the list that WakeList::take returned
  void set_backlog(size_t bytes) { backlog_.store(bytes, std::memory_order_relaxed); }  // taken and not written
  void finish();                                                                        // the response was sent
  void close();  // the client is gone, or was cut off

 private:
  enum class Stage { kWaiting, kStreaming, kEnded };

  template <class Change>
  void change(Change change);

  friend class WakeList;
  const std::shared_ptr<WakeList> wakes_;
  std::shared_ptr<ResponseChannel> next_;  // in `wakes_`, and its
  const BodyFraming framing_;
  Connection* connection_;
  std::atomic<bool> is_closed_{false};
  std::atomic<size_t> backlog_{0};
  mutable std::mutex mutex_;  // of all below
  Stage stage_ = Stage::kWaiting;
  Output output_;
  bool is_queued_ = false;    // in `wakes_`
  bool is_finished_ = false;  // the client can no longer go too early
  std::function<void()> gone_;
};

// The handler's end. A handler that drops it without a response has failed.
class Exchange final : public HttpExchange {
 public:
  Exchange(HttpRequest request, std::shared_ptr<ResponseChannel> channel)
      : request_(std::move(request)), channel_(std::move(channel)) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() override { channel_->fail(); }

  const HttpRequest& request() const override { return request_; }
  void respond(int status, std::string_view content_type, std::string body, HttpHeaders headers) override {
    channel_->respond({status, std::string(content_type), std::move(headers)}, std::move(body));
  }
  void begin_stream(int status, std::string_view content_type, HttpHeaders headers) override {
    channel_->begin_stream({status, std::string(content_type), std::move(headers)});
  }
  void send(std::string_view piece) override { channel_->send(piece); }
  void end_stream() override { channel_->end_stream(); }
  size_t unsent_bytes() const override { return channel_->unsent_bytes(); }
  bool is_closed() const override { return channel_->is_closed(); }
  void on_gone(std::function<void()> gone) override { channel_->on_gone(std::move(gone)); }

 private:
  const HttpRequest request_;
  const std::shared_ptr<ResponseChannel> channel_;
};

}  // namespace headrace
