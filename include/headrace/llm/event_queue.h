// Carries what an engine's thread has to tell to whoever submitted requests.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "headrace/engine/engine.h"
#include "headrace/llm/step_recorder.h"

namespace headrace {

// News of one choice of a request since the last event about it was taken.
struct GenerationEvent {
  int64_t request_id = 0;
  int32_t choice = 0;  // 0 to GenerationRequest::n - 1
  std::vector<StepOutput>
      outputs;  // in order; finish_reason is set in the last one of the choice. Empty: prompt chunks
  std::optional<StepReport> report;  // of the last step, if the request asked for reports
  int32_t num_forwards = 0;          // of the choice so far
};

// Thread-safe. Events of a choice that nobody has taken yet are one event, so a slow consumer costs the memory of the
// tokens that it has not read, and delays nobody. Outlives the requests that were submitted with it.
class EventQueue {
 public:
  // `on_ready` is called when the queue turns from empty to not empty, on the engine's thread: it must be short and
  // must not call this queue or the engine. A server's event loop wakes itself with it.
  explicit EventQueue(std::function<void()> on_ready = {}) : on_ready_(std::move(on_ready)) {}
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  // Takes the oldest event; nothing if there is none.
  std::optional<GenerationEvent> poll();
  // As poll(), but waits for one; nothing if none came in time.
  GenerationEvent wait();
  std::optional<GenerationEvent> wait_for(std::chrono::nanoseconds time);

  void push(GenerationEvent event);  // the engine's side: merges it with one of the same choice that waits here
};

}  // namespace headrace
