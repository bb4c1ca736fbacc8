#include "headrace/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "headrace/core/scope_end.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/engine/decoding_checks.h"
#include "headrace/engine/graph_sizes.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/reference/reference_ops.h"

namespace headrace {
namespace {

SchedulerConfig scheduler_config(const Model& model, const EngineConfig& c) {
  return {.num_pages = c.runner.num_pages,
          .page_size = c.runner.page_size,
          .max_requests = c.max_requests,
          .num_states = model.info().num_gdn_layers > 0 ? c.runner.num_states : 0,
          .max_context_len = c.max_context_len,
          .context_name = c.context_name,
          .max_tokens_per_step = static_cast<int32_t>(c.runner.max_tokens),
          .keep_text = c.keep_text};
}

EngineConfig with_vocab(EngineConfig config, const Model& model) {
  if (config.vocab == 0) config.vocab = model.info().vocab_size;
  return config;
}

const OpSet& sampling_ops(const EngineConfig& c) {
  return c.runner.backend == "reference" ? reference::ops() : cpu::select_kernel_set(c.runner.kernel_set);
}

void check_valid(const ScheduledStep& step, std::span<const SampledToken> sampled) {
  for (size_t i = 0; i < sampled.size(); ++i) {
    HR_REQUIRE(!sampled[i].none_left, ErrorCode::kInvalidArgument, "request ", step.sequence->id,
               ": no token may be chosen at position ", step.plan.sample[i].position,
               ": its biases, bans and constraint leave none");
    HR_REQUIRE(sampled[i].is_valid(), ErrorCode::kModelFile, "request ", step.sequence->id, ": the logits of position ",
               step.plan.sample[i].position, " are NaN or infinite", kNotNumbers);
  }
  for (int32_t p = step.plan.scored.begin; p < step.plan.scored.end; ++p) {
    HR_REQUIRE(!std::isnan(step.sequence->prompt_logprobs[static_cast<size_t>(p)].token.logprob), ErrorCode::kModelFile,
               "request ", step.sequence->id, ": the logits of position ", p + 1, " are NaN", kNotNumbers);
  }
}

}  // namespace

std::vector<StepOutput> throw_if_failed(std::vector<StepOutput> outputs) {
  for (const StepOutput& out : outputs) {
    if (out.error) throw Error(*out.error);
  }
  return outputs;
}

Engine::Engine(const Model& model, const EngineConfig& config)
    : Engine(model, config, strategy_of(model.info(), config)) {}

Engine::Engine(const Model& model, const EngineConfig& config, std::unique_ptr<DecodingStrategy> strategy)
    : model_(model),
      config_(with_vocab(config, model)),
      strategy_(std::move(strategy)),
      runner_(model, config.runner),
      scheduler_(scheduler_config(model, config), *strategy_),
      sampler_(sampling_ops(config), config.runner.context, config_.vocab) {
  const TensorView table = scheduler_.table().page_table();
  BatchLimits limits{.max_requests = config.max_requests,
                     .max_context_len = config.max_context_len,
                     .table_rows = table.dim(0),
                     .table_pages = table.dim(1)};
  const StrategyTraits& traits = strategy_->traits();
  using DecodeRows = CudaGraphConfig::DecodeRows;
  limits.decode_rows = traits.runs_tokens_once ? DecodeRows::kYes : DecodeRows::kNo;
  if (traits.step) limits.rows = row_graphs(*traits.step, config.max_requests);
  if (traits.canvas) {
    limits.canvases = canvas_graphs(*traits.canvas, traits.step, config.max_requests, config.max_context_len);
  }
  if (traits.segment) {
    limits.segments = segment_graphs(*traits.segment, config.max_requests, model.info().vocab_size);
  }
  runner_.prepare(limits);
}

std::unique_ptr<Sequence> Engine::sequence_of(EngineRequest request) const {
  check_params(request.params, config_.strategy, model_.info());
  check_graphs(request.params, config_.runner.graphs);
  check_prompt(request.prompt, request.params, model_.info(), config_.decoding.mask_token_id);
  check_chosen_ids(request.params, config_.vocab);
  if (request.constraint != nullptr) check_constraint(config_.strategy);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = request.id.value_or(0);
  sequence->params = std::move(request.params);
  sequence->cache_salt = std::move(request.cache_salt);
  sequence->constraint = std::move(request.constraint);
  if (model_.info().diffusion) sequence->scores_of = scores_of(sequence->params, *model_.info().diffusion);
  sequence->prompt_len = static_cast<int32_t>(request.prompt.size());
  sequence->num_published = sequence->prompt_len;
  sequence->eos_ids = sequence->params.stop_token_ids;
  if (sequence->params.end_of_text == SamplingParams::EndOfText::kStops)
    sequence->eos_ids.insert(sequence->eos_ids.end(), model_.info().eos_ids.begin(), model_.info().eos_ids.end());
  sequence->tokens = std::move(request.prompt);
  return sequence;
}

void Engine::start(Sequence& sequence) const {
  scheduler_.check_length(sequence);
  sequence.limit = std::min(sequence.prompt_len + sequence.params.max_tokens, config_.max_context_len);
  strategy_->start(sequence);
  scheduler_.check_size(sequence);
}

void Engine::check(const EngineRequest& request) const { start(*sequence_of(request)); }

int64_t Engine::add(EngineRequest request) {
  check_device();
  const int64_t id = request.id.value_or(next_id_);
  HR_REQUIRE(!has(id), ErrorCode::kInvalidArgument, "request ", id, ": one with this id waits or runs");
  request.id = id;
  std::unique_ptr<Sequence> sequence = sequence_of(std::move(request));
  const bool warming_up = runner_.metadata_source().is_warming_up();
  HR_REQUIRE(warming_up ? scheduler_.idle() : warm_up_.empty(), ErrorCode::kInvalidArgument, "request ", id, ": ",
             warming_up ? "a warm-up" : "it", " cannot start before the ", warming_up ? "requests" : "warm-up",
             " that are queued have ended");
  if (warming_up) {
    warm_up_.add(id, std::move(sequence->tokens), sequence->params.max_tokens);
    return count(id);
  }
  start(*sequence);
  scheduler_.add(*sequence);
  sequences_.emplace(id, std::move(sequence));
  return count(id);
}

int64_t Engine::count(int64_t id) {
  next_id_ = std::max(next_id_, id + 1);
  return id;
}

void Engine::abort(int64_t id) { end(id, PageTable::Keeps::kYes); }

std::optional<PrefixMiss> Engine::why_miss(int64_t id) const {
  if (const auto ended = ended_misses_.find(id); ended != ended_misses_.end()) return ended->second;
  const auto found = sequences_.find(id);
  return found != sequences_.end() && found->second->begun ? std::optional(found->second->miss) : std::nullopt;
}

bool Engine::is_waiting(int64_t id) const {
  const auto found = sequences_.find(id);
  return found != sequences_.end() && found->second->table_row == 0 && found->second->num_preempted == 0;
}

bool Engine::preempt(int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return false;
  Sequence& s = *found->second;
  if (in_flight_.empty()) return scheduler_.preempt(s);
  if (s.table_row == 0 || !strategy_->may_preempt(s)) return false;
  to_preempt_.push_back(id);
  return true;
}

void Engine::end(int64_t id, PageTable::Keeps keeps) {
  warm_up_.remove(id);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  if (found->second->begun) ended_misses_[id] = found->second->miss;
  for (InFlightStep& in_flight : in_flight_) {
    for (ScheduledStep& step : in_flight.steps) {
      if (step.sequence == found->second.get()) step.sequence = nullptr;
    }
  }
  scheduler_.release(*found->second, keeps);
  sequences_.erase(found);
}

void Engine::check_device() const {
  HR_REQUIRE(!fault_, ErrorCode::kCuda, *fault_, "; the device works again in a new process alone");
}

void Engine::give_up(const std::string& fault) {
  fault_ = fault;
  while (!sequences_.empty()) abort(sequences_.begin()->first);
  warm_up_ = {};
}

template <class Run>
auto Engine::run_step_or_fail(const Run& run) {
  check_device();
  in_step_.clear();
  outputs_.clear();
  try {
    return run();
  } catch (...) {
    const Error e = handled_error();
    e.code() == ErrorCode::kCuda ? give_up(e.what()) : fail_step();
    throw;
  }
}

void Engine::note(const std::vector<ScheduledStep>& steps) {
  for (const ScheduledStep& step : steps) {
    if (step.sequence != nullptr) in_step_.push_back(step.sequence->id);
  }
}

// A failed step is not retried, but for one that ran out of memory.
std::vector<int64_t> Engine::requests_of_failed_step() const {
  std::vector<int64_t> ids = in_step_;
  ids.insert(ids.end(), scheduler_.in_plan().begin(), scheduler_.in_plan().end());
  return ids;
}

void Engine::fail_step() {
  for (const int64_t id : requests_of_failed_step()) fail(id);
  try {
    drain();
  } catch (const Error& e) {
    give_up(e.what());  // the caller gets the first error now, this one with the next call
  }
}

void Engine::fail_alone(int64_t id) {
  const Error error = handled_error();
  if (error.code() == ErrorCode::kCuda) throw;
  const Sequence& s = *sequences_.at(id);
  outputs_.push_back({.sequence_id = id,
                      .finish_reason = FinishReason::kError,
                      .num_forwards = s.num_forwards,
                      .num_reused = s.num_reused,
                      .error = error});
  fail(id);
}

// Earlier steps may have stored the cause of the failure, such as NaN, so nobody takes over what it has stored.
void Engine::fail(int64_t id) { end(id, PageTable::Keeps::kNo); }

// Outputs of requests that ended before a step threw are returned first.
std::vector<StepOutput> Engine::step() {
  ended_misses_.clear();
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  try {
    return run_step_or_fail([this] { return run_step_in_parts(); });
  } catch (...) {
    if (outputs_.empty()) throw;
    thrown_ = std::current_exception();
    return std::exchange(outputs_, {});
  }
}

std::vector<StepOutput> Engine::run_step_in_parts() {
  for (;;) {
    try {
      return run_step();
    } catch (...) {
      const Error e = handled_error();
      if (e.code() != ErrorCode::kOutOfMemory || !split_step()) throw;
    }
  }
}

// Nothing of the step is committed, and running it again stores the same K and V. Recurrent states alone may have been
// updated in place: their requests run their text again.
bool Engine::split_step() {
  if (in_flight_.size() != 1 || in_flight_.front().steps.empty() || in_flight_.front().has_placeholders) return false;
  std::vector<ScheduledStep> steps = std::move(in_flight_.front().steps);
  drain();
  in_step_.clear();
  int32_t rows = 0;
  for (const ScheduledStep& step : steps) rows += step.plan.num_rows();
  const auto num_lost = std::erase_if(steps, [](const ScheduledStep& step) { return step.sequence == nullptr; });
  std::vector<int64_t> ids(steps.size());
  std::ranges::transform(steps, ids.begin(), [](const ScheduledStep& step) { return step.sequence->id; });
  if (model_.info().num_gdn_layers > 0) {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) scheduler_.preempt(*step->sequence);
  }
  retry_apart(ids, rows, num_lost > 0 ? WasAlone::kNo : WasAlone::kUnlessOthers);
  return true;
}

// A request that runs out of memory alone gets smaller steps, or ends. If none does, all get smaller steps.
// Beside requests that have ended since the step was planned, it was not alone.
void Engine::retry_apart(const std::vector<int64_t>& ids, int32_t rows, WasAlone was_alone) {
  if (retries_.empty()) {
    rows_of_failed_step_ = rows;
  } else {
    retries_.pop_front();
  }
  if (was_alone == WasAlone::kNo) return retries_.push_front(ids);
  if (ids.size() > 1) {
    const auto half = ids.begin() + std::ssize(ids) / 2;
    retries_.emplace_front(half, ids.end());
    retries_.emplace_front(ids.begin(), half);
    return;
  }
  rows_of_failed_step_ = 0;
  Sequence& s = *sequences_.at(ids.front());
  if (rows <= rows_needed(strategy_->traits(), s)) return fail_alone(s.id);
  s.most_rows = std::max(rows / 2, rows_needed(strategy_->traits(), s));
  retries_.push_front(ids);
}

void Engine::end_retry() {
  if (retries_.empty()) return;
  retries_.pop_front();
  if (!retries_.empty() || rows_of_failed_step_ == 0) return;
  const int32_t most = std::max(rows_of_failed_step_ / 2, 1);
  if (config_.log) {
    config_.log(LogLevel::kWarning, str("a step of ", rows_of_failed_step_,
                                        " rows ran out of memory; steps have at most ", most, " rows from now on"));
  }
  scheduler_.limit_rows(most);
}

void Engine::run_largest_step() {
  const WarmupScope warming_up(runner_.metadata_source());
  const int64_t rows = std::min<int64_t>(config_.runner.max_tokens, config_.max_context_len);
  add(std::vector<int32_t>(static_cast<size_t>(rows)), {.max_tokens = 1});
  while (!idle()) step();
}

std::vector<ScheduledStep> Engine::next_steps(Scheduler::Preempts preempts) {
  std::vector<ScheduledStep> steps =
      scheduler_.next(preempts, retries_.empty() ? std::vector<int64_t>() : retries_.front());
  note(steps);
  for (const StateCopy& copy : scheduler_.take_state_copies()) runner_.copy_state(copy.from, copy.to);
  return steps;
}

std::optional<std::vector<ScheduledStep>> Engine::try_next_steps(Scheduler::Preempts preempts) {
  try {
    return next_steps(preempts);
  } catch (...) {
    const std::vector<int64_t> unplanned = scheduler_.in_plan();
    if (unplanned.empty()) throw;
    for (const int64_t id : unplanned) fail_alone(id);
    return std::nullopt;
  }
}

void Engine::show_planned(const std::vector<ScheduledStep>& steps) const {
  for (const ScheduledStep& step : steps) {
    if (observer_ && step.sequence != nullptr) observer_(StepMoment::kPlanned, *step.sequence, step.plan);
  }
}

void Engine::commit(const std::vector<ScheduledStep>& steps, std::span<const SampledToken> sampled, Committed before) {
  outputs_.reserve(outputs_.size() + sampled.size());
  for (const ScheduledStep& step : steps) {
    const std::span<const SampledToken> own = sampled.first(step.plan.sample.size());
    sampled = sampled.subspan(own.size());
    if (step.sequence == nullptr || !commit_or_fail(step, own, before)) continue;  // null: aborted while its step ran
    Sequence& s = *step.sequence;
    if (!publish_or_fail(s)) continue;
    if (observer_) observer_(StepMoment::kCommitted, s, step.plan);
    if (step.sequence != nullptr && s.finish_reason) abort(s.id);
  }
}

bool Engine::commit_or_fail(const ScheduledStep& step, std::span<const SampledToken> sampled, Committed before) {
  Sequence& s = *step.sequence;
  const KeySpan& last = step.plan.spans.back().keys;
  if (!sampled.empty() || last.phys0 + last.q_len > s.prefill_len) ++s.num_forwards;
  try {
    check_valid(step, sampled);
    if (before == Committed::kNothing) {
      strategy_->commit(s, step.plan, sampled);
    } else if (!sampled.empty()) {
      s.tokens.back() = sampled.front().id, s.chosen.back() = sampled.front();
    }
    return true;
  } catch (...) {
    fail_alone(s.id);
    return false;
  }
}

bool Engine::publish_or_fail(Sequence& s) {
  try {
    publish(s);
    return true;
  } catch (...) {
    fail_alone(s.id);
    return false;
  }
}

void Engine::publish(Sequence& s) {
  while (s.num_published < s.num_final && !s.finish_reason) {
    const SampledToken& token = s.chosen[static_cast<size_t>(s.num_published - s.prompt_len)];
    if (s.constraint != nullptr) s.constraint->accept(token.id);
    ++s.num_published;
    s.finish_reason = finish_reason_of(s, token.id);
    StepOutput& output = outputs_.emplace_back();  // filled in place, as a copy waits for its parts
    output.sequence_id = s.id, output.token = token, output.finish_reason = s.finish_reason;
    output.num_forwards = s.num_forwards, output.num_reused = s.num_reused;
    output.prompt_logprobs = std::exchange(s.prompt_logprobs, {});
    if (!s.top.empty()) output.top = std::move(s.top[static_cast<size_t>(s.num_output() - 1)]);
  }
}

std::optional<FinishReason> Engine::finish_reason_of(const Sequence& s, int32_t token) const {
  if (std::ranges::find(s.eos_ids, token) != s.eos_ids.end()) return FinishReason::kStop;
  if (s.num_output() >= s.params.max_tokens) return FinishReason::kLength;
  return s.num_published >= config_.max_context_len ? std::optional(FinishReason::kContext) : std::nullopt;
}

StepResult Engine::run_alone(const std::vector<int32_t>& tokens, int32_t num_rows, const StepReads& reads) {
  HR_REQUIRE(idle(), ErrorCode::kInvalidArgument, "engine: score runs alone, but requests are queued");
  const int64_t id = add(tokens, {.max_tokens = 1});
  const ScopeEnd stop_running([this, id] { abort(id); });
  const TokenRange all{0, static_cast<int32_t>(tokens.size())};
  return run_step_or_fail([&] {
    drain();  // of a step whose requests were all aborted
    const ScheduledStep step{.sequence = next_steps().front().sequence, .plan = causal_step(all, {0, num_rows})};
    runner_.launch(builder_.build({&step, 1}, scheduler_.table(), &runner_.backend()));
    runner_.choose(reads);
    return runner_.retire();
  });
}

Tensor Engine::logits(const std::vector<int32_t>& tokens) {
  return run_alone(tokens, static_cast<int32_t>(tokens.size()), {.logits = StepReads::Logits::kToHost}).logits;
}

std::vector<float> Engine::score(const std::vector<int32_t>& tokens) {
  std::vector<LogprobRow> rows;
  for (const int32_t token : std::span(tokens).subspan(1)) {
    rows.push_back({.row = static_cast<int32_t>(std::ssize(rows)), .token = token});
  }
  const std::vector<SampleSpot> spots(rows.size());
  const StepResult read =
      run_alone(tokens, static_cast<int32_t>(rows.size()),
                {.choice = TokenChoice{.vocab = model_.info().vocab_size, .spots = spots}, .logprobs = rows});
  std::vector<float> scores;
  for (const RowLogprobs& row : read.logprobs) scores.push_back(row.logprob);
  for (size_t i = 0; i < scores.size(); ++i) {
    HR_REQUIRE(!std::isnan(scores[i]), ErrorCode::kModelFile, "engine: the logits behind token ", i, " are no numbers",
               kNotNumbers);
  }
  return scores;
}

}  // namespace headrace
