// Carries what an engine's thread has to tell to whoever submitted requests.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "headrace/engine/engine.h"
#include "headrace/llm/step_recorder.h"

namespace headrace {

// News of one choice of a request since the last event about it was taken.
struct GenerationEvent {
  int64_t request_id = 0;
  int32_t choice = 0;  // 0 to GenerationRequest::n - 1
  uint64_t seed = 0;   // of the choice: also one that was drawn
  // In order. finish_reason is set in the last one of the choice; it holds no token if that is kAborted or kError.
  // Empty: a step without tokens of a request that reports steps, such as a prompt chunk.
  std::vector<StepOutput> outputs = {};
  std::optional<StepReport> report = {};        // if the request reports steps and did not fail in this one
  std::shared_ptr<const PrefixMiss> miss = {};  // with the first token, if the request asks
  int32_t num_forwards = 0;                     // of the choice so far

  bool is_last() const { return !outputs.empty() && outputs.back().finish_reason.has_value(); }
};

// Thread-safe. Events of a choice that nobody has taken yet are one event, unless the request reports steps. So a slow
// consumer costs the memory of the tokens that it has not read, and delays nobody. Any number of requests share a
// queue, also those of several engines. It outlives them: each ends with its last event.
class EventQueue {
 public:
  // `on_ready` is called when the queue turns from empty to not empty, on the engine's thread: it must be short, must
  // not throw, and must not call this queue or the engine. A server's event loop wakes itself with it.
  explicit EventQueue(std::function<void()> on_ready = {}) : on_ready_(std::move(on_ready)) {}
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Takes the oldest event; nothing if there is none.
  std::optional<GenerationEvent> poll();
  // As poll(), but waits for one; wait_for() returns nothing if none came in time.
  GenerationEvent wait();
  std::optional<GenerationEvent> wait_for(std::chrono::nanoseconds time);

  // The engine's side. A choice whose news come here until its last output; the queue owns it.
  struct Source;
  Source& open(int64_t request_id, int32_t choice, uint64_t seed);
  struct News {
    Source* from = nullptr;
    StepOutput output;
    std::unique_ptr<StepReport> report = nullptr;  // set: an event begins, the step's outputs follow, `output` is none
    std::shared_ptr<const PrefixMiss> miss = nullptr;
  };
  // Takes what a step has for this queue and wakes who waits. Leaves `news` empty, with memory for the next step's.
  // Consumers sort them by choice, so that the engine's thread need not.
  void push(std::vector<News>& news);

 private:
  struct Queued {
    GenerationEvent event;
    Source* from = nullptr;  // null: nothing is added any more
  };

  bool empty() const { return news_.empty() && events_.empty(); }
  void sort_news();
  void sort(News& news);
  GenerationEvent& event_for(const News& news);  // the one that waits, or a new one
  GenerationEvent take();                        // the queue is not empty

  std::function<void()> on_ready_;
  std::mutex mutex_;  // of what follows
  std::condition_variable ready_;
  std::vector<News> news_;     // not yet sorted
  std::deque<Queued> events_;  // oldest first
  std::list<Source> sources_;
};

struct EventQueue::Source {
  int64_t request_id = 0;
  int32_t choice = 0;
  uint64_t seed = 0;
  Queued* queued = nullptr;  // the event that its news are added to
  std::list<Source>::iterator self = {};
};

}  // namespace headrace
