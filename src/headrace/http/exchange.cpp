#include "headrace/http/exchange.h"

#include <utility>

#include "headrace/core/error.h"

namespace headrace {

void WakeList::add(std::shared_ptr<ResponseChannel> channel) noexcept {
  const std::lock_guard lock(mutex_);
  if (!wake_) return;
  ResponseChannel* const added = channel.get();
  (first_ ? last_->next_ : first_) = std::move(channel);
  last_ = added;
  if (is_awake_) return;
  try {
    wake_();
    is_awake_ = true;
  } catch (...) {
  }
}

std::shared_ptr<ResponseChannel> WakeList::take() {
  const std::lock_guard lock(mutex_);
  is_awake_ = false;
  return std::exchange(first_, nullptr);
}

void WakeList::close() {
  std::shared_ptr<ResponseChannel> dropped;
  {
    const std::lock_guard lock(mutex_);
    wake_ = nullptr;
    dropped = std::exchange(first_, nullptr);
  }
  while (dropped) dropped = dropped->take_next();
}

// Runs `change`, which returns whether it made output, and tells the event loop.
template <class Change>
void ResponseChannel::change(Change change) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed() || output_.has_failed || !change() || is_queued_) return;
    is_queued_ = true;
  }
  wakes_->add(shared_from_this());
}

void ResponseChannel::respond(ResponseHead head, std::string body) {
  change([&] {
    HR_ASSERT(stage_ == Stage::kWaiting);
    stage_ = Stage::kEnded;
    output_.content_length = body.size();
    if (framing_ != BodyFraming::kNone && has_body(head.status)) output_.bytes = std::move(body);
    output_.head = std::move(head);
    return output_.has_ended = true;
  });
}

void ResponseChannel::begin_stream(ResponseHead head) {
  change([&] {
    HR_ASSERT(stage_ == Stage::kWaiting && has_body(head.status));
    stage_ = Stage::kStreaming;
    output_.head = std::move(head);
    return true;
  });
}

void ResponseChannel::send(std::string_view piece) {
  change([&] {
    HR_ASSERT(stage_ == Stage::kStreaming);
    if (framing_ == BodyFraming::kChunked) append_chunk(output_.bytes, piece);
    if (framing_ == BodyFraming::kUntilClose) output_.bytes += piece;
    return !output_.bytes.empty();
  });
}

void ResponseChannel::end_stream() {
  change([&] {
    HR_ASSERT(stage_ == Stage::kStreaming);
    stage_ = Stage::kEnded;
    if (framing_ == BodyFraming::kChunked) output_.bytes += kLastChunk;
    return output_.has_ended = true;
  });
}

void ResponseChannel::fail() noexcept {
  change([&] {
    if (stage_ == Stage::kEnded) return false;
    stage_ = Stage::kEnded;
    return output_.has_failed = true;
  });
}

size_t ResponseChannel::unsent_bytes() const {
  const std::lock_guard lock(mutex_);
  return output_.bytes.size() + backlog_.load(std::memory_order_relaxed);
}

void ResponseChannel::on_gone(std::function<void()> gone) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_closed()) {
      if (!is_finished_) gone_ = std::move(gone);
      return;
    }
  }
  gone();
}

ResponseChannel::Output ResponseChannel::take() {
  const std::lock_guard lock(mutex_);
  is_queued_ = false;
  Output output = std::move(output_);
  output_ = {};
  output_.has_failed = output.has_failed;
  backlog_.fetch_add(output.bytes.size(), std::memory_order_relaxed);
  return output;
}

void ResponseChannel::finish() {
  std::function<void()> gone;  // destroyed without the lock, because it may own this
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
  is_finished_ = true;
  backlog_ = 0;
  gone = std::move(gone_);
}

void ResponseChannel::close() {
  std::function<void()> gone;
  {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
    is_closed_ = true;
    backlog_ = 0;
    output_ = {};
    gone = std::move(gone_);
  }
  if (gone) gone();
}

}  // namespace headrace
