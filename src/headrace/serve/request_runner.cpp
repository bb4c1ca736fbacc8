#include "headrace/serve/request_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kTick{100}, kPausedTick{20};

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double seconds_of(milliseconds time) { return std::chrono::duration<double>(time).count(); }

bool is_aborted(const GenerationEvent& event) {
  return event.is_last() && event.outputs.size() == 1 && event.outputs.front().finish_reason == FinishReason::kAborted;
}

}  // namespace

struct RequestRunner::Job {
  std::shared_ptr<Call> call;
  std::unique_ptr<Response> response;
  std::unique_ptr<Admission::Ticket> ticket;  // until the engine has no choice of it left

  // Members of the runner's thread.
  bool has_begun = false;  // its stream
  bool has_ended = false;  // it was answered, or its client has gone
  bool waits = true;       // no event of it has come
  bool was_asked_to_leave = false;
  int32_t open_requests = 0;
  std::deque<std::pair<int32_t, GenerationEvent>> held;  // by prompt, while it is paused
  std::optional<Clock::time_point> first_token;
  Clock::time_point last_token = Clock::now(), last_ping = last_token;

  std::mutex mutex;          // of what follows
  std::vector<int64_t> ids;  // of the engine's requests
  bool is_gone = false;      // the client, or the whole request
};

RequestRunner::RequestRunner(const RunnerTimes& times, Metrics& metrics) : times_(times), metrics_(metrics) {}

void RequestRunner::start(AsyncLLM& llm) {
  llm_ = &llm;
  thread_ = std::thread([this] { run(); });
}

void RequestRunner::stop() {
  is_stopping_ = true;
  if (thread_.joinable()) thread_.join();
  for (const std::shared_ptr<Job>& job : jobs()) abort(*job);
  const std::lock_guard lock(mutex_);
  jobs_.clear();
  places_.clear();
}

void RequestRunner::submit(std::shared_ptr<Call> call, Work work, std::unique_ptr<Admission::Ticket> ticket) {
  const auto job = std::make_shared<Job>();
  job->call = std::move(call), job->response = std::move(work.response), job->ticket = std::move(ticket);
  job->open_requests = static_cast<int32_t>(work.requests.size());
  {
    const std::lock_guard lock(mutex_);
    try {
      for (size_t i = 0; i < work.requests.size(); ++i) {
        const int32_t n = work.requests[i].n;
        const int64_t id = llm_->submit(std::move(work.requests[i]), events_);
        job->ids.push_back(id);
        places_.emplace(id, Place{job, static_cast<int32_t>(i), n});
      }
    } catch (...) {
      for (const int64_t id : job->ids) {
        llm_->abort(id);
        places_.erase(id);
      }
      throw;
    }
    jobs_.insert(job);
    if (!has_work_) last_turn_ = Clock::now();
    has_work_ = true;
  }
  job->call->exchange().on_gone([this, gone = std::weak_ptr(job)] {
    if (const auto found = gone.lock()) abort(*found);
  });
}

void RequestRunner::abort(Job& job) {
  const std::lock_guard lock(job.mutex);
  job.is_gone = true;
  for (const int64_t id : job.ids) llm_->abort(id);
}

std::vector<std::shared_ptr<RequestRunner::Job>> RequestRunner::jobs() const {
  const std::lock_guard lock(mutex_);
  return {jobs_.begin(), jobs_.end()};
}

bool RequestRunner::is_idle() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty();
}

void RequestRunner::fail_all(const RequestError& error) {
  const std::lock_guard lock(mutex_);
  end_of_all_ = error;
}

void RequestRunner::run() {
  auto ticked = Clock::now();
  while (!is_stopping_) {
    const milliseconds between = paused_.empty() ? kTick : kPausedTick;
    if (auto event = events_.wait_for(between)) take(std::move(*event));
    const auto now = Clock::now();
    if (now - ticked < between) continue;
    ticked = now;
    tick(now);
  }
}

void RequestRunner::take(GenerationEvent event) {
  std::shared_ptr<Job> job;
  int32_t prompt = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(event.request_id);
    if (found == places_.end()) return;  // of a request that was refused as a whole
    job = found->second.job, prompt = found->second.prompt;
    if (event.is_last() && --found->second.open_choices == 0) {
      places_.erase(found);
      --job->open_requests;
      has_work_ = !places_.empty();
    }
  }
  if (!job->has_ended) {
    if (!job->held.empty() || (job->has_begun && job->call->exchange().unsent_bytes() > kMostUnsent)) {
      hold(*job, prompt, std::move(event));
      paused_.insert(job);
    } else {
      feed(*job, prompt, event);
    }
  }
  forget_if_over(job);
}

// Tokens of one choice behind each other become one piece.
void RequestRunner::hold(Job& job, int32_t prompt, GenerationEvent event) {
  GenerationEvent* const last = job.held.empty() ? nullptr : &job.held.back().second;
  const bool continues = last != nullptr && last->request_id == event.request_id && last->choice == event.choice &&
                         !event.report && !event.outputs.empty() && !is_aborted(event);
  if (!continues) {
    job.held.emplace_back(prompt, std::move(event));
    return;
  }
  last->outputs.insert(last->outputs.end(), std::make_move_iterator(event.outputs.begin()),
                       std::make_move_iterator(event.outputs.end()));
  last->num_forwards = event.num_forwards;
  if (event.miss) last->miss = std::move(event.miss);
}

void RequestRunner::forget_if_over(const std::shared_ptr<Job>& job) {
  if (job->open_requests > 0) return;
  job->ticket.reset();
  if (!job->has_ended) return;
  const std::lock_guard lock(mutex_);
  jobs_.erase(job);
}

void RequestRunner::feed(Job& job, int32_t prompt, const GenerationEvent& event) {
  {
    const std::lock_guard lock(job.mutex);
    if (job.is_gone) {
      job.has_ended = true;
      job.call->record.error = "the client has gone", job.call->record.error_code = "aborted";
      job.call->end(499);
      return;
    }
  }
  try {
    count_tokens(job, prompt, event);
    if (job.was_asked_to_leave && is_aborted(event) && !job.response->has_ended(prompt, event.choice))
      throw RequestError(503, str("the request waited for ", seconds_of(times_.queue), " s, the most that it may"), "",
                         "queue_timeout");
    job.waits = false;
    const auto then = job.response->push(prompt, event);
    if (then == Response::Then::kAbort) llm_->abort(event.request_id, event.choice);
    if (job.response->request().stream) send_news(job, prompt, event.choice);
    if (job.response->done()) finish(job);
  } catch (const RequestError& error) {
    fail(job, error);
  } catch (const Error& error) {
    note_fault(error);
    fail(job, request_error_of(error));
  } catch (const std::exception& error) {
    fail(job, RequestError(500, error.what()));
  }
}

void RequestRunner::count_tokens(Job& job, int32_t prompt, const GenerationEvent& event) {
  if (event.outputs.empty() || is_aborted(event)) return;
  const auto now = Clock::now();
  if (!job.first_token) {
    job.first_token = now;
    job.ticket->start();
    metrics_.add_first_token(seconds_between(job.call->begin(), now));
  } else if (prompt == 0 && event.choice == 0) {
    metrics_.add_between_tokens(seconds_between(job.last_token, now) / static_cast<double>(event.outputs.size()));
  }
  job.last_token = now;
}

void RequestRunner::begin(Job& job) {
  if (!std::exchange(job.has_begun, true)) job.call->begin_stream(job.response->stream_type());
}

void RequestRunner::send_news(Job& job, int32_t prompt, int32_t choice) {
  piece_.clear();
  job.response->append_news(prompt, choice, piece_);
  if (piece_.empty()) return;
  begin(job);
  if (!job.response->done()) job.call->exchange().send(piece_);  // else finish() sends it with the end
}

void RequestRunner::finish(Job& job) {
  job.has_ended = true;
  const ResponseTimes times{.first_token_s = seconds_between(job.call->begin(), job.first_token.value_or(Clock::now())),
                            .total_s = job.call->seconds()};
  RequestRecord& record = job.call->record;
  record.usage = job.response->usage(), record.first_token_s = times.first_token_s;
  record.finish_reason = name_of(job.response->finish_reason());
  if (!record.input.empty()) record.output = job.response->text_of(0, 0);
  metrics_.count_success(record.finish_reason, *record.usage);
  metrics_.add_request(times.total_s);
  if (!job.response->request().stream) {
    job.call->respond_json(job.response->json(times));
    return;
  }
  begin(job);
  job.response->append_end(times, piece_);
  job.call->exchange().send(piece_);
  job.call->exchange().end_stream();
  job.call->end(200);
}

void RequestRunner::fail(Job& job, const RequestError& error) {
  job.has_ended = true;
  abort(job);
  if (!job.has_begun) {
    HttpHeaders headers;
    if (error.status() == 503) headers.emplace_back("retry-after", "1");
    job.call->refuse(error, std::move(headers));
    return;
  }
  RequestRecord& record = job.call->record;
  record.error = error.what(), record.error_code = error.api_code().empty() ? error.type() : error.api_code();
  piece_.clear();
  job.response->append_error(error, piece_);
  job.call->exchange().send(piece_);
  job.call->exchange().end_stream();
  job.call->end(error.status());
}

void RequestRunner::tick(Clock::time_point now) {
  std::vector<std::shared_ptr<Job>> all = jobs();
  std::optional<RequestError> end;
  {
    const std::lock_guard lock(mutex_);
    end = std::exchange(end_of_all_, std::nullopt);
  }
  for (const std::shared_ptr<Job>& job : all) {
    if (job->has_ended) continue;
    if (end) fail(*job, *end);
    if (!job->has_ended) check_times(*job, now);
    if (!job->has_ended) ping(*job, now);
    forget_if_over(job);
  }
  for (const std::shared_ptr<Job>& job : std::exchange(paused_, {})) {
    resume(*job);
    if (!job->held.empty()) paused_.insert(job);
    forget_if_over(job);
  }
  watch_engine(now);
}

void RequestRunner::resume(Job& job) {
  HttpExchange& exchange = job.call->exchange();
  while (!job.held.empty() && !job.has_ended && (exchange.unsent_bytes() <= kMostUnsent || exchange.is_closed())) {
    const auto [prompt, event] = std::move(job.held.front());
    job.held.pop_front();
    feed(job, prompt, event);
  }
  if (job.has_ended) job.held.clear();
}

void RequestRunner::check_times(Job& job, Clock::time_point now) {
  const auto age = now - job.call->begin();
  if (times_.request.count() > 0 && age > times_.request) {
    fail(job, RequestError(504, str("the request ran for ", seconds_of(times_.request), " s, the most that it may"), "",
                           "request_timeout"));
  } else if (times_.queue.count() > 0 && job.waits && !job.was_asked_to_leave && age > times_.queue) {
    job.was_asked_to_leave = true;
    const std::lock_guard lock(job.mutex);
    for (const int64_t id : job.ids) llm_->abort_waiting(id);
  }
}

// The head of a stream goes with its first piece, so that what fails before has a status of its own.
void RequestRunner::ping(Job& job, Clock::time_point now) {
  if (times_.ping.count() == 0 || !job.response->request().stream ||
      now - std::max(job.last_token, job.last_ping) < times_.ping)
    return;
  if (job.call->exchange().unsent_bytes() > 0) return;  // its reader is slow, not its writer
  begin(job);
  job.last_ping = now;
  piece_.clear();
  job.response->append_ping(piece_);
  job.call->exchange().send(piece_);
}

void RequestRunner::watch_engine(Clock::time_point now) {
  const EngineStats stats = llm_->stats();
  const std::lock_guard lock(mutex_);
  has_work_ = !places_.empty();
  if (stats.heartbeat != heartbeat_ || !has_work_) last_turn_ = now;
  heartbeat_ = stats.heartbeat;
}

double RequestRunner::stalled_s() const {
  const std::lock_guard lock(mutex_);
  return has_work_ ? seconds_between(last_turn_, Clock::now()) : 0;
}

void RequestRunner::note_fault(const Error& error) {
  if (error.code() != ErrorCode::kCuda) return;
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = error.what();
}

std::optional<std::string> RequestRunner::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

}  // namespace headrace
