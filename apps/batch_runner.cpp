#include "batch_runner.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "headrace/core/printable.h"
#include "headrace/core/scope_end.h"
#include "headrace/serve/batch_line.h"
#include "headrace/serve/stable_hash.h"
#include "seconds_since.h"

namespace headrace::app {

struct BatchRunner::Job {
  int32_t line = 0;
  int64_t number = 0;  // of the line in the file
  std::optional<std::string> custom_id;
  Work work;                 // its requests go when they are submitted
  std::vector<int64_t> ids;  // of the engine's requests, one for each prompt

  int32_t num_choices = 0;
  Response& response() const { return *work.response; }
};

BatchRunner::BatchRunner(AsyncLLM& llm, EventQueue& events, const BatchInput& input, PartialResults& results,
                         BatchRunnerConfig config)
    : llm_(llm),
      events_(events),
      input_(input),
      config_(std::move(config)),
      model_(llm, config_.model_names, std::move(config_.chat), llm.default_params()),
      results_(results) {}

BatchTotals BatchRunner::run(const GoOn& go_on) {
  constexpr std::chrono::milliseconds kBetweenReports{100}, kBetweenSyncs{1000};
  std::thread feeder([this] { feed(); });
  const ScopeEnd end([&] {
    stop();
    feeder.join();
  });
  auto reported = Clock::now(), synced = reported;
  while (!is_done()) {
    if (const auto event = events_.wait_for(kBetweenReports)) take(*event);
    const auto now = Clock::now();
    if (now - reported < kBetweenReports) continue;
    reported = now;
    if (!go_on(totals())) break;
    if (now - synced < kBetweenSyncs) continue;
    synced = now;
    const std::lock_guard lock(mutex_);
    results_.sync();
  }
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
  results_.sync();
  return totals_;
}

BatchTotals BatchRunner::totals() {
  const std::lock_guard lock(mutex_);
  return totals_;
}

bool BatchRunner::is_done() {
  const std::lock_guard lock(mutex_);
  return is_fed_ && places_.empty();
}

void BatchRunner::stop() {
  const std::lock_guard lock(mutex_);
  is_stopping_ = true;
  room_.notify_all();
  for (const auto& [id, place] : places_) llm_.abort(id);
  places_.clear();
}

void BatchRunner::feed() {
  try {
    for (int32_t line = 0; line < input_.size(); ++line) {
      {
        const std::lock_guard lock(mutex_);
        if (is_stopping_) break;
        if (results_.has(line)) continue;
      }
      const auto job = std::make_shared<Job>();
      job->line = line, job->number = input_.number(line);
      try {
        read(*job);
        warn_of_unknown(job->response().request());
        submit(job);
      } catch (const RequestError& error) {
        fail(*job, error);
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    for (const auto& [id, place] : places_) llm_.abort(id);
    places_.clear();
  }
  const std::lock_guard lock(mutex_);
  is_fed_ = true;
}

void BatchRunner::read(Job& job) const {
  const BatchLine line(input_.text(job.line));
  job.custom_id = line.custom_id();
  const JsonNode& body = line.body();
  const auto work_of = line.is_chat() ? chat_work : completion_work;
  job.work = work_of(body, model_,
                     {.id = (line.is_chat() ? "chatcmpl-" : "cmpl-") + batch_line_id(job.number, job.custom_id),
                      .created = input_.modified(),
                      .model = {},
                      .shows_cached_tokens = false});
  if (job.response().request().stream)
    throw RequestError(400, "stream is true, expected false: a line of a batch has one response", "stream");
  for (size_t i = 0; i < job.work.requests.size(); ++i) {
    GenerationRequest& one = job.work.requests[i];
    job.num_choices += one.n;
    if (!one.params.seed) one.params.seed = stable_hash(str(config_.seed, ':', job.number, ':', i));
  }
}

void BatchRunner::warn_of_unknown(const ApiRequest& request) {
  for (const std::string& name : request.unknown_fields) {
    if (warned_.size() < 20 && warned_.insert(name).second && config_.warn) {
      config_.warn(str("the field '", printable(name), "' of a request is unknown and ignored"));
    }
  }
}

void BatchRunner::submit(const std::shared_ptr<Job>& job) {
  std::unique_lock lock(mutex_);
  const int32_t more = job->num_choices;
  room_.wait(lock, [&] { return is_stopping_ || num_submitted_ == 0 || num_submitted_ + more <= config_.window; });
  if (is_stopping_) return;
  try {
    for (GenerationRequest& request : job->work.requests) {
      const int64_t id = llm_.submit(std::move(request), events_);
      job->ids.push_back(id);
      places_.emplace(id, Place{job, static_cast<int32_t>(job->ids.size()) - 1});
    }
  } catch (const Error& error) {
    for (const int64_t id : job->ids) {
      llm_.abort(id);
      places_.erase(id);
    }
    job->ids.clear();
    if (error.code() == ErrorCode::kCuda) throw;
    throw request_error_of(error);
  }
  job->work.requests.clear();
  num_submitted_ += more;
}

void BatchRunner::take(const GenerationEvent& event) {
  Place place;
  {
    const std::lock_guard lock(mutex_);
    const auto found = places_.find(event.request_id);
    if (found == places_.end()) return;  // its line has ended
    place = found->second;
  }
  try {
    const auto then = place.job->response().push(place.prompt, event);
    if (then == Response::Then::kAbort) llm_.abort(event.request_id, event.choice);
    if (place.job->response().done()) end(*place.job);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCuda || error.code() == ErrorCode::kIo) throw;
    for (const int64_t id : place.job->ids) llm_.abort(id);
    fail(*place.job, request_error_of(error));
  }
}

void BatchRunner::end(const Job& job) {
  std::string body = job.response().json({});
  const auto usage = job.response().usage();
  const std::lock_guard lock(mutex_);
  totals_.prompt_tokens += usage.prompt_tokens;
  totals_.completion_tokens += usage.completion_tokens;
  totals_.cached_tokens += usage.cached_tokens;
  write(job, 200, std::move(body));
}

void BatchRunner::fail(const Job& job, const RequestError& error) {
  const std::lock_guard lock(mutex_);
  ++totals_.failed;
  write(job, error.status(), error.json());
}

void BatchRunner::write(const Job& job, int status, std::string body) {
  if (is_stopping_) return;
  results_.append(job.line, status, json_of({job.number, job.custom_id, status, std::move(body)}));
  ++totals_.lines;
  if (job.ids.empty()) return;
  for (const int64_t id : job.ids) places_.erase(id);
  num_submitted_ -= job.num_choices;
  room_.notify_one();
}

}  // namespace headrace::app
