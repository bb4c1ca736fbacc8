// Runs requests in the engine and answers them: one thread makes texts of all requests' tokens and sends them.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "headrace/llm/async_llm.h"
#include "headrace/serve/admission.h"
#include "headrace/serve/call.h"
#include "headrace/serve/metrics.h"
#include "headrace/serve/work.h"

namespace headrace {

struct RunnerTimes {
  std::chrono::milliseconds queue{60'000};  // a request that has not begun by then is refused; 0: never
  std::chrono::milliseconds request{0};     // one that has not ended by then is ended; 0: never
  std::chrono::milliseconds ping{30'000};  // a stream without tokens for so long gets a piece without content; 0: never
};

// The members are thread-safe.
class RequestRunner {
 public:
  // A stream whose reader leaves more than this pauses: its tokens wait, and become text when there is room.
  static constexpr size_t kMostUnsent = size_t{64} << 10;  // bytes

  // `metrics` is not owned.
  RequestRunner(const RunnerTimes& times, Metrics& metrics);
  RequestRunner(const RequestRunner&) = delete;
  RequestRunner& operator=(const RequestRunner&) = delete;
  ~RequestRunner() { stop(); }

  void start(AsyncLLM& llm);  // not owned; once, before submit()
  // Queues the request; its response follows. Errors as AsyncLLM::submit; the call is then the caller's.
  void submit(std::shared_ptr<Call> call, Work work, std::unique_ptr<Admission::Ticket> ticket);
  // Ends all requests that run with `error`.
  void fail_all(const RequestError& error);
  bool is_idle() const;  // all responses have been handed to their connections
  // Ends the thread. Aborts all requests, without a response. The model must still be there.
  void stop();

  // Seconds since the engine's thread last began a turn while there is work; 0 without work.
  double stalled_s() const;
  // Why the device failed; nothing while it works.
  std::optional<std::string> fault() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job;
  struct Place {
    std::shared_ptr<Job> job;
    int32_t prompt = 0, open_choices = 0;
  };

  void run();
  void take(GenerationEvent event);
  static void hold(Job& job, int32_t prompt, GenerationEvent event);
  void feed(Job& job, int32_t prompt, const GenerationEvent& event);
  void send_news(Job& job, int32_t prompt, int32_t choice);
  void finish(Job& job);
  void fail(Job& job, const RequestError& error);
  void abort(Job& job);
  void tick(Clock::time_point now);
  void resume(Job& job);
  void check_times(Job& job, Clock::time_point now);
  void ping(Job& job, Clock::time_point now);
  void watch_engine(Clock::time_point now);
  void note_fault(const Error& error);
  void begin(Job& job);  // its stream
  void count_tokens(Job& job, int32_t prompt, const GenerationEvent& event);
  void forget_if_over(const std::shared_ptr<Job>& job);
  std::vector<std::shared_ptr<Job>> jobs() const;

  const RunnerTimes times_;
  Metrics& metrics_;  // not owned
  EventQueue events_;
  AsyncLLM* llm_ = nullptr;  // not owned
  std::thread thread_;
  std::atomic<bool> is_stopping_ = false;
  std::string piece_;                      // of the runner's thread
  std::set<std::shared_ptr<Job>> paused_;  // likewise

  mutable std::mutex mutex_;                   // of what follows
  std::unordered_map<int64_t, Place> places_;  // of the engine's requests
  std::set<std::shared_ptr<Job>> jobs_;
  std::optional<RequestError> end_of_all_;
  std::optional<std::string> fault_;
  int64_t heartbeat_ = 0;
  Clock::time_point last_turn_ = Clock::now();
  bool has_work_ = false;
};

}  // namespace headrace
