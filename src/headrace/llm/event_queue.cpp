#include "headrace/llm/event_queue.h"

#include <utility>

namespace headrace {

GenerationEvent EventQueue::take() {
  const std::shared_ptr<Growing> oldest = std::move(events_.front());
  events_.pop_front();
  oldest->is_queued = false;
  return std::move(oldest->event);  // its numbers and its empty list stay
}

std::optional<GenerationEvent> EventQueue::poll() {
  const std::lock_guard lock(mutex_);
  return events_.empty() ? std::nullopt : std::optional(take());
}

GenerationEvent EventQueue::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return !events_.empty(); });
  return take();
}

std::optional<GenerationEvent> EventQueue::wait_for(std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  return ready_.wait_for(lock, time, [this] { return !events_.empty(); }) ? std::optional(take()) : std::nullopt;
}

EventQueue::Push::Push(EventQueue& queue) : queue_(queue), lock_(queue.mutex_), was_empty_(queue.events_.empty()) {}

// Wakes before the lock is released: whoever takes the last event may destroy the queue.
EventQueue::Push::~Push() {
  if (queue_.events_.empty()) return;
  queue_.ready_.notify_all();
  if (was_empty_ && queue_.on_ready_) queue_.on_ready_();
}

GenerationEvent& EventQueue::Push::to(const std::shared_ptr<Growing>& growing) {
  if (!growing->is_queued) {
    queue_.events_.push_back(growing);
    growing->is_queued = true;
  }
  return growing->event;
}

}  // namespace headrace
