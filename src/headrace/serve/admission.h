// Limits of the requests that wait. Refused ones never reach the engine.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>

namespace headrace {

struct AdmissionConfig {
  int32_t max_running = 1;            // choices that the engine runs at a time
  int32_t max_queued_requests = 512;  // choices that wait besides these
  int64_t max_queued_tokens = 0;      // tokens of prompts without a first token yet; 0: any number
};

// Thread-safe.
class Admission {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Admission(const AdmissionConfig& config) : config_(config) {}

  // A place in the queue and in the engine, until it is destroyed. Not thread-safe.
  class Ticket {
   public:
    // Takes the place of one choice. Throws RequestError 429 if the queue is full.
    explicit Ticket(Admission& admission);
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket();

    // Counts the request as it turned out to be: all of its choices, and the tokens of its prompts. Throws RequestError
    // 429, without effect, if that is too much. A request alone is never too much by its tokens.
    void grow(int32_t choices, int64_t tokens);
    void start();  // its prompts wait no longer

   private:
    Admission& admission_;  // not owned
    int32_t choices_ = 1;
    int64_t tokens_ = 0;
  };

  bool is_full() const;
  int32_t num_live() const;  // choices with a ticket
  // Seconds after which a place will probably be free: what waits, by the rate at which requests ended lately. 1 to 60.
  int32_t retry_after() const;

 private:
  void leave(int32_t choices, int64_t tokens);
  int32_t retry_after_locked() const;
  [[noreturn]] void refuse(const char* what, int64_t most) const;

  const AdmissionConfig config_;
  mutable std::mutex mutex_;  // of what follows
  int32_t live_ = 0;
  int64_t queued_tokens_ = 0;
  std::deque<Clock::time_point> ends_;  // of the last choices that left
};

}  // namespace headrace
