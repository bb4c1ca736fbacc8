#include "request_stream.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace headrace::python {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};  // at whether the engine is being closed

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

RequestStream::ReadyEvent::ReadyEvent() : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  HR_REQUIRE(fd >= 0, ErrorCode::kIo, "no file descriptor is left for a stream of requests");
}

RequestStream::ReadyEvent::~ReadyEvent() { ::close(fd); }

RequestStream::RequestStream(std::shared_ptr<Engine> engine, Delivers delivers)
    : engine_(std::move(engine)), delivers_(delivers), ready_(std::make_shared<ReadyEvent>()) {
  if (delivers == Delivers::kWholes) call_.emplace(*engine_);
  events_ = std::make_unique<EventQueue>([ready = ready_] { eventfd_write(ready->fd, 1); });
}

RequestStream::~RequestStream() { close(); }

void RequestStream::close() {
  if (engine_->is_forked()) {
    static_cast<void>(events_.release());  // its locks may be held in the parent
    requests_.clear();
  } else if (!requests_.empty()) {
    try {
      const Engine::Use llm = call_ ? Engine::Use(*call_) : Engine::Use(*engine_);
      const nanobind::gil_scoped_release release;
      drop_requests(*llm);
    } catch (const Error&) {  // the engine is closing: this is no time to give the GIL away
      requests_.clear();
      engine_->keep(std::move(events_));
    }
  }
  call_.reset();
}

void RequestStream::drop_requests(AsyncLLM& llm) {
  for (const auto& [id, request] : requests_) llm.abort(id);
  std::vector<Update> ignored;
  while (!requests_.empty()) take(llm, events_->wait(), ignored);
}

int64_t RequestStream::add(AsyncLLM& llm, std::vector<int32_t> prompt_ids, const RequestParams& params,
                           std::string cache_salt) {
  GenerationRequest asked{.prompt_ids = std::move(prompt_ids),
                          .params = params.sampling,
                          .n = params.n,
                          .cache_salt = std::move(cache_salt),
                          .reports_steps = params.reports_steps};
  const auto now = Clock::now();
  const int64_t id = llm.submit(std::move(asked), *events_);
  Request& request = requests_[id];
  request.params = params, request.added = now, request.num_open = params.n;
  request.choices.reserve(static_cast<size_t>(params.n));
  for (int32_t i = 0; i < params.n; ++i) {
    request.choices.push_back({.stream = {llm.tokenizer(), params.sampling.stop, params.special_text},
                               .update = {.request_id = id, .choice = i}});
  }
  return id;
}

std::vector<Update> RequestStream::wait(AsyncLLM& llm, std::chrono::nanoseconds time) {
  const auto end = Clock::now() + time;
  std::vector<Update> updates;
  while (updates.empty()) {
    HR_REQUIRE(!engine_->is_closing(), ErrorCode::kCancelled, "this LLM was closed while requests ran");
    const auto left = std::min<std::chrono::nanoseconds>(end - Clock::now(), kBetweenLooks);
    if (left.count() <= 0) break;
    if (auto event = events_->wait_for(left)) take(llm, std::move(*event), updates);
  }
  std::vector<Update> more = poll(llm);
  std::ranges::move(more, std::back_inserter(updates));
  return updates;
}

std::vector<Update> RequestStream::poll(AsyncLLM& llm) {
  eventfd_t count = 0;
  static_cast<void>(eventfd_read(ready_->fd, &count));  // before the queue: what comes later makes it readable again
  std::vector<Update> updates;
  while (auto event = events_->poll()) take(llm, std::move(*event), updates);
  return updates;
}

void RequestStream::take(AsyncLLM& llm, GenerationEvent event, std::vector<Update>& updates) {
  const auto found = requests_.find(event.request_id);
  if (found == requests_.end()) return;
  Request& request = found->second;
  Choice& choice = request.choices.at(static_cast<size_t>(event.choice));
  const bool is_last = event.is_last();
  if (!choice.has_ended) {
    choice.has_news = choice.has_news || !event.outputs.empty() || event.report;
    choice.update.seed = event.seed;
    choice.update.num_forwards = event.num_forwards;
    if (event.report) choice.update.steps.push_back(std::move(*event.report));
    for (StepOutput& output : event.outputs) {
      if (!choice.has_ended) push(request, choice, std::move(output));
    }
    const bool delivers = delivers_ == Delivers::kNews || choice.has_ended;
    if (delivers && choice.has_news) updates.push_back(taken(choice));
    if (choice.has_ended && !is_last) llm.abort(event.request_id, event.choice);
  }
  if (is_last && --request.num_open == 0) requests_.erase(found);
}

void RequestStream::push(Request& request, Choice& choice, StepOutput output) {
  Update& update = choice.update;
  const double now = seconds(Clock::now() - request.added);
  if (output.error) {
    update.error = std::move(output.error);
    choice.has_ended = true;
    return;
  }
  const bool has_token = output.finish_reason != FinishReason::kAborted;
  if (has_token) {
    if (choice.completion.ids.empty()) update.first_token_s = now;
    update.last_token_s = now;
    update.top.push_back(std::move(output.top));
    std::ranges::move(output.prompt_logprobs, std::back_inserter(update.prompt_logprobs));
  }
  choice.stream.push(output, choice.completion);
  if (output.finish_reason || choice.stream.stopped()) end(choice, request.params.sampling);
}

void RequestStream::end(Choice& choice, const SamplingParams& params) {
  Update& update = choice.update;
  choice.has_ended = true;
  update.finish_reason = choice.completion.finish_reason;
  if (const std::string* stop = choice.stream.stop()) {
    update.stop_text = *stop;
    return;
  }
  if (update.finish_reason != FinishReason::kStop || choice.completion.ids.empty()) return;
  const int32_t last = choice.completion.ids.back();
  if (std::ranges::find(params.stop_token_ids, last) != params.stop_token_ids.end()) update.stop_token = last;
}

Update RequestStream::taken(Choice& choice) {
  Update update = std::move(choice.update);
  const Completion& all = choice.completion;
  update.text = all.text.substr(choice.shown_bytes);
  const auto from = static_cast<std::ptrdiff_t>(choice.shown_tokens);
  update.token_ids.assign(all.ids.begin() + from, all.ids.end());
  update.logprobs.assign(all.logprobs.begin() + from, all.logprobs.end());
  update.num_reused = all.num_reused;
  choice.shown_bytes = all.text.size(), choice.shown_tokens = all.ids.size(), choice.has_news = false;
  choice.update = {.request_id = update.request_id,
                   .choice = update.choice,
                   .seed = update.seed,
                   .first_token_s = update.first_token_s,
                   .last_token_s = update.last_token_s};
  return update;
}

}  // namespace headrace::python
