#include "headrace/serve/admission.h"

#include <algorithm>
#include <cmath>

#include "headrace/serve/request_error.h"

namespace headrace {

Admission::Ticket::Ticket(Admission& admission) : admission_(admission) {
  const std::lock_guard lock(admission.mutex_);
  const AdmissionConfig& most = admission.config_;
  if (admission.live_ >= most.max_running + most.max_queued_requests)
    admission.refuse(" requests wait", most.max_queued_requests);
  ++admission.live_;
}

Admission::Ticket::~Ticket() { admission_.leave(choices_, tokens_); }

void Admission::Ticket::grow(int32_t choices, int64_t tokens) {
  const std::lock_guard lock(admission_.mutex_);
  const AdmissionConfig& most = admission_.config_;
  const int32_t others = admission_.live_ - choices_;
  if (others > 0 && others + choices > most.max_running + most.max_queued_requests)
    admission_.refuse(" choices may wait", most.max_queued_requests);
  const int64_t waiting = admission_.queued_tokens_;
  if (most.max_queued_tokens > 0 && waiting > 0 && waiting + tokens > most.max_queued_tokens)
    admission_.refuse(" tokens of prompts may wait", most.max_queued_tokens);
  admission_.live_ += choices - choices_, admission_.queued_tokens_ += tokens;
  choices_ = choices, tokens_ = tokens;
}

void Admission::Ticket::start() {
  if (tokens_ == 0) return;
  const std::lock_guard lock(admission_.mutex_);
  admission_.queued_tokens_ -= tokens_;
  tokens_ = 0;
}

void Admission::leave(int32_t choices, int64_t tokens) {
  constexpr size_t kRemembered = 64;
  const std::lock_guard lock(mutex_);
  live_ -= choices, queued_tokens_ -= tokens;
  ends_.push_back(Clock::now());
  if (ends_.size() > kRemembered) ends_.pop_front();
}

bool Admission::is_full() const {
  const std::lock_guard lock(mutex_);
  return live_ >= config_.max_running + config_.max_queued_requests;
}

int32_t Admission::num_live() const {
  const std::lock_guard lock(mutex_);
  return live_;
}

int32_t Admission::retry_after() const {
  const std::lock_guard lock(mutex_);
  return retry_after_locked();
}

// Half of the queue, so that those who come back find room and do not all come at once.
int32_t Admission::retry_after_locked() const {
  constexpr double kMost = 60;
  if (ends_.size() < 2) return 1;
  const double seconds = std::chrono::duration<double>(Clock::now() - ends_.front()).count();
  const double waiting = std::max(0, live_ - config_.max_running);
  return static_cast<int32_t>(
      std::clamp(std::ceil(waiting / 2 * seconds / static_cast<double>(ends_.size())), 1.0, kMost));
}

void Admission::refuse(const char* what, int64_t most) const {
  throw RequestError(429, str("the queue is full: at most ", most, what, "; try again in ", retry_after_locked(), " s"),
                     "", "queue_full");
}

}  // namespace headrace
