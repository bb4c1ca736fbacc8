// Runs the requests of a batch file through an engine that always has enough of them.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "batch_input.h"
#include "headrace/llm/async_llm.h"
#include "headrace/serve/request_error.h"
#include "headrace/serve/work.h"
#include "partial_results.h"

namespace headrace::app {

// Sums over the lines that have ended.
struct BatchTotals {
  int64_t lines = 0, failed = 0, prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

struct BatchRunnerConfig {
  std::vector<std::string> model_names;   // that a request's "model" may be; the first one stands in responses
  std::optional<ChatTemplate> chat = {};  // the model's; absent: lines of chats fail
  uint64_t seed = 0;                      // requests without a seed have one that follows from this and their line
  int32_t window = 1;                     // choices that the engine has at a time, running and waiting; not of one line
  std::function<void(const std::string&)> warn;
};

// A thread of its own reads, tokenises and submits lines. The thread that calls run() makes texts of tokens and writes
// results. At most `window` choices, or one line, are in memory.
class BatchRunner {
 public:
  // Nothing is owned. `events` outlives `llm`.
  BatchRunner(AsyncLLM& llm, EventQueue& events, const BatchInput& input, PartialResults& results,
              BatchRunnerConfig config);

  // Runs all lines without a result. Calls `go_on` ten times a second; once it returns false, aborts what runs and
  // returns. A line that fails has a result that says so. Errors: kIo of the files, and kCuda.
  using GoOn = std::function<bool(const BatchTotals& so_far)>;
  BatchTotals run(const GoOn& go_on);

 private:
  struct Job;  // a line of the input
  struct Place {
    std::shared_ptr<Job> job;
    int32_t prompt;
  };

  void feed();
  void read(Job& job) const;
  void warn_of_unknown(const ApiRequest& request);
  void submit(const std::shared_ptr<Job>& job);
  void take(const GenerationEvent& event);
  void end(const Job& job);
  void fail(const Job& job, const RequestError& error);
  void write(const Job& job, int status, std::string body);  // the lock is held
  void stop();
  BatchTotals totals();
  bool is_done();

  AsyncLLM& llm_;
  EventQueue& events_;
  const BatchInput& input_;
  BatchRunnerConfig config_;
  const ServedModel model_;
  std::set<std::string> warned_;  // unknown fields

  std::mutex mutex_;  // of all that follows
  std::condition_variable room_;
  PartialResults& results_;
  BatchTotals totals_;
  std::unordered_map<int64_t, Place> places_;  // of the engine's requests
  int32_t num_submitted_ = 0;                  // choices of these
  bool is_stopping_ = false, is_fed_ = false;
  std::exception_ptr failure_;  // of the thread that feeds
};

}  // namespace headrace::app
