#include "headrace/llm/event_queue.h"

#include <iterator>
#include <utility>

namespace headrace {

EventQueue::Source& EventQueue::open(int64_t request_id, int32_t choice, uint64_t seed) {
  const std::lock_guard lock(mutex_);
  Source& source = sources_.emplace_back(Source{.request_id = request_id, .choice = choice, .seed = seed});
  source.self = std::prev(sources_.end());
  return source;
}

// Wakes before the lock is released: whoever takes the last event may destroy the queue.
void EventQueue::push(std::vector<News>& news) {
  const std::lock_guard lock(mutex_);
  const bool was_empty = empty();
  if (news_.empty()) {
    std::swap(news_, news);
  } else {
    news_.insert(news_.end(), std::make_move_iterator(news.begin()), std::make_move_iterator(news.end()));
    news.clear();
  }
  ready_.notify_all();
  if (was_empty && on_ready_) on_ready_();
}

void EventQueue::sort_news() {
  for (News& news : news_) sort(news);
  news_.clear();
}

void EventQueue::sort(News& news) {
  Source& source = *news.from;
  GenerationEvent& event = event_for(news);
  event.num_forwards = news.output.num_forwards;
  if (news.miss) event.miss = std::move(news.miss);
  if (news.report) {
    event.report = std::move(*news.report);
    return;
  }
  event.outputs.push_back(std::move(news.output));
  if (!event.is_last()) return;
  source.queued->from = nullptr;
  sources_.erase(source.self);
}

GenerationEvent& EventQueue::event_for(const News& news) {
  Source& source = *news.from;
  const bool reported = source.queued != nullptr && source.queued->event.report;
  const bool is_token = !news.output.error && news.output.finish_reason != FinishReason::kAborted;
  if (source.queued != nullptr && !news.report && (is_token || !reported)) return source.queued->event;
  if (source.queued != nullptr) source.queued->from = nullptr;
  source.queued = &events_.emplace_back(Queued{.from = &source});
  GenerationEvent& event = source.queued->event;
  event.request_id = source.request_id, event.choice = source.choice, event.seed = source.seed;
  return event;
}

GenerationEvent EventQueue::take() {
  sort_news();
  Queued oldest = std::move(events_.front());
  events_.pop_front();
  if (oldest.from != nullptr) oldest.from->queued = nullptr;
  return std::move(oldest.event);
}

std::optional<GenerationEvent> EventQueue::poll() {
  const std::lock_guard lock(mutex_);
  return empty() ? std::nullopt : std::optional(take());
}

GenerationEvent EventQueue::wait() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [this] { return !empty(); });
  return take();
}

std::optional<GenerationEvent> EventQueue::wait_for(std::chrono::nanoseconds time) {
  std::unique_lock lock(mutex_);
  return ready_.wait_for(lock, time, [this] { return !empty(); }) ? std::optional(take()) : std::nullopt;
}

}  // namespace headrace
