// AsyncLLM: a loaded model and its engine, for any number of threads.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "headrace/llm/event_queue.h"
#include "headrace/llm/llm_options.h"

namespace headrace {

struct GenerationRequest {
  std::vector<int32_t> prompt_ids = {};
  SamplingParams params = {};
  int32_t n = 1;                // choices: answers to the prompt, each with a seed of its own (seed_of_choice)
  std::string cache_salt = {};  // cached text is shared with requests of the same salt only
  std::shared_ptr<TokenConstraint> constraint = nullptr;  // null: any token may come; expects n = 1
  bool reports_steps = false;                             // events have a StepReport; expects n = 1
};

// Seed of a choice: the first one has that of the request.
uint64_t seed_of_choice(uint64_t seed, int32_t choice);

// Numbers of one moment.
struct EngineStats {
  int32_t running = 0, waiting = 0;
  int64_t steps = 0, rows = 0, tokens = 0;  // since the start (EngineCounters)
  int64_t preemptions = 0;
  int32_t free_pages = 0, num_pages = 0;    // with evictable ones
  int32_t free_states = 0, num_states = 0;  // likewise; 0 of 0: the model has none
};

// All members may be called from any thread. One thread of its own runs the engine; nothing else happens there:
// tokenising, detokenising and stop texts are the caller's (TextStream).
class AsyncLLM {
 public:
  // Loads the model and starts the engine's thread. Error kModelFile, kUnsupported, kOutOfMemory: one sentence.
  AsyncLLM(const ModelDescription& model, const LLMOptions& options);
  // Aborts all requests, without further events, and ends the thread.
  ~AsyncLLM();

  // Queues a request and returns its id. Its events arrive in `events` (not owned). An absent seed is drawn.
  // Errors as Engine::add, and kCancelled after drain(). What fails later arrives as an event of reason kError.
  int64_t submit(GenerationRequest request, EventQueue& events);
  // Ends a request, or one of its choices, with an event of reason kAborted; ignores unknown ones and those that have
  // ended. No event of it comes after that one. Its pages are free when the step that runs has ended.
  void abort(int64_t request_id);
  void abort(int64_t request_id, int32_t choice);
  // Refuses new requests from now on, and returns when all that were submitted have ended.
  void drain();
  EngineStats stats() const;
};

}  // namespace headrace
