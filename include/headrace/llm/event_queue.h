// Carries what an engine's thread has to tell to whoever submitted requests.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
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
  std::optional<StepReport> report = {};  // if the request reports steps and did not fail in this one
  int32_t num_forwards = 0;               // of the choice so far

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

  // The engine's side. An event of a choice that grows until it is taken. The engine and the queue share it: whichever
  // is done with it last frees it.
  struct Growing {
    GenerationEvent event;
    bool is_queued = false;
  };
  // Adds to events under one lock and then wakes who waits. While one lives, the queue is locked.
  class Push {
   public:
    explicit Push(EventQueue& queue);
    Push(const Push&) = delete;
    Push& operator=(const Push&) = delete;
    ~Push();
    // Returns the event to add to, which it queues if it was taken.
    GenerationEvent& to(const std::shared_ptr<Growing>& growing);

   private:
    EventQueue& queue_;  // not owned
    std::lock_guard<std::mutex> lock_;
    bool was_empty_;
  };

 private:
  GenerationEvent take();  // the lock is held, the queue not empty

  std::function<void()> on_ready_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::shared_ptr<Growing>> events_;  // oldest first
};

}  // namespace headrace
