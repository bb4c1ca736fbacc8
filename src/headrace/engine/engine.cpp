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

}  // namespace

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

int64_t Engine::add(std::vector<int32_t> prompt, const SamplingParams& params) {
  check_device();
  check_params(params, config_.strategy, model_.info());
  check_graphs(params, config_.runner.graphs);
  check_prompt(prompt, params, model_.info(), config_.decoding.mask_token_id);
  for (const int32_t id : params.stop_token_ids) {
    HR_REQUIRE(id < config_.vocab, ErrorCode::kInvalidArgument, "stop_token_ids: ", id,
               " is never chosen: the tokenizer has ids below ", config_.vocab);
  }
  const bool warming_up = runner_.metadata_source().is_warming_up();
  HR_REQUIRE(warming_up ? scheduler_.idle() : warm_up_.empty(), ErrorCode::kInvalidArgument, "request ", next_id_, ": ",
             warming_up ? "a warm-up" : "it", " cannot start before the ", warming_up ? "requests" : "warm-up",
             " that are queued have ended");
  if (warming_up) {
    warm_up_.add(next_id_, std::move(prompt), params.max_tokens);
    return next_id_++;
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_;
  sequence->params = params;
  if (model_.info().diffusion) sequence->scores_of = scores_of(params, *model_.info().diffusion);
  sequence->prompt_len = static_cast<int32_t>(prompt.size());
  sequence->num_published = sequence->prompt_len;
  scheduler_.check_length(*sequence);
  sequence->limit = std::min(sequence->prompt_len + params.max_tokens, config_.max_context_len);
  sequence->eos_ids = params.stop_token_ids;
  if (params.end_of_text == SamplingParams::EndOfText::kStops)
    sequence->eos_ids.insert(sequence->eos_ids.end(), model_.info().eos_ids.begin(), model_.info().eos_ids.end());
  sequence->tokens = std::move(prompt);
  strategy_->start(*sequence);
  scheduler_.add(*sequence);
  sequences_.emplace(next_id_, std::move(sequence));
  batch_changed_ = true;
  return next_id_++;
}

void Engine::abort(int64_t id) {
  warm_up_.remove(id);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  batch_changed_ = true;  // if it waited, another one may fit in its place
  for (InFlightStep& in_flight : in_flight_) {
    for (ScheduledStep& step : in_flight.steps) {
      if (step.sequence == found->second.get()) step.sequence = nullptr;
    }
  }
  scheduler_.release(*found->second);
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
  try {
    return run();
  } catch (const Error& e) {
    e.code() == ErrorCode::kCuda ? give_up(e.what()) : fail_step();
    throw;
  } catch (...) {
    fail_step();
    throw;
  }
}

void Engine::note(const std::vector<ScheduledStep>& steps) {
  for (const ScheduledStep& step : steps) {
    if (step.sequence != nullptr) in_step_.push_back(step.sequence->id);
  }
}

// A failed step is not retried: it would update recurrent states twice.
void Engine::fail_step() {
  for (const int64_t id : in_step_) fail(id);
  for (const int64_t id : scheduler_.in_plan()) fail(id);
  try {
    drain();
  } catch (const Error& e) {
    give_up(e.what());  // the caller gets the first error now, this one with the next call
  }
}

// Earlier steps may have stored the cause of the failure, such as NaN, so nobody takes over what it has stored.
void Engine::fail(int64_t id) {
  if (has(id)) sequences_.at(id)->num_cached = 0;
  abort(id);
}

std::vector<StepOutput> Engine::step() {
  return run_step_or_fail([this] { return run_step(); });
}

std::vector<ScheduledStep> Engine::next_steps(Scheduler::Admits admits) {
  std::vector<ScheduledStep> steps = scheduler_.next(admits);
  note(steps);
  for (const StateCopy& copy : scheduler_.take_state_copies()) runner_.copy_state(copy.from, copy.to);
  return steps;
}

void Engine::show_planned(const std::vector<ScheduledStep>& steps) const {
  for (const ScheduledStep& step : steps) {
    if (observer_ && step.sequence != nullptr) observer_(StepMoment::kPlanned, *step.sequence, step.plan);
  }
}

std::vector<StepOutput> Engine::commit(const std::vector<ScheduledStep>& steps, std::span<const SampledToken> sampled,
                                       Committed before) {
  std::vector<StepOutput> outputs;
  outputs.reserve(sampled.size());
  size_t next = 0;
  for (const ScheduledStep& step : steps) {
    if (step.sequence == nullptr) {  // aborted while its step ran
      next += step.plan.sample.size();
      continue;
    }
    Sequence& s = *step.sequence;
    const StepPlan& plan = step.plan;
    const KeySpan& last = plan.spans.back().keys;
    if (!plan.sample.empty() || last.phys0 + last.q_len > s.prompt_len) ++s.num_forwards;
    if (before == Committed::kNothing) {
      strategy_->commit(s, plan, sampled.subspan(next, plan.sample.size()));
    } else {
      s.tokens.back() = sampled[next].id, s.chosen.back() = sampled[next];
    }
    next += plan.sample.size();
    publish(s, outputs);
    if (observer_) observer_(StepMoment::kCommitted, s, plan);
    if (step.sequence != nullptr && s.finish_reason) abort(s.id);
  }
  return outputs;
}

void Engine::publish(Sequence& s, std::vector<StepOutput>& outputs) const {
  while (s.num_published < s.num_final && !s.finish_reason) {
    const SampledToken& token = s.chosen[static_cast<size_t>(s.num_published++ - s.prompt_len)];
    s.finish_reason = finish_reason_of(s, token.id);
    StepOutput& output = outputs.emplace_back();  // filled in place, as a copy waits for its parts
    output.sequence_id = s.id, output.token = token, output.finish_reason = s.finish_reason;
    output.num_forwards = s.num_forwards, output.num_reused = s.num_reused;
  }
}

std::optional<FinishReason> Engine::finish_reason_of(const Sequence& s, int32_t token) const {
  if (std::ranges::find(s.eos_ids, token) != s.eos_ids.end()) return FinishReason::kStop;
  if (s.num_output() >= s.params.max_tokens) return FinishReason::kLength;
  return s.num_published >= config_.max_context_len ? std::optional(FinishReason::kContext) : std::nullopt;
}

std::vector<float> Engine::score(const std::vector<int32_t>& tokens) {
  HR_REQUIRE(idle(), ErrorCode::kInvalidArgument, "engine: score runs alone, but requests are queued");
  const int64_t id = add(tokens, {.max_tokens = 1});
  const ScopeEnd stop_running([this, id] { abort(id); });
  const TokenRange all{0, static_cast<int32_t>(tokens.size())};
  const std::span next(tokens.begin() + 1, tokens.end());
  std::vector<float> scores = run_step_or_fail([&] {
    drain();  // of a step whose requests were all aborted
    const ScheduledStep step{.sequence = next_steps().front().sequence, .plan = causal_step(all, {0, all.end - 1})};
    runner_.launch(builder_.build({&step, 1}, scheduler_.table(), &runner_.backend()), {.scored = next});
    return runner_.retire().scores;
  });
  for (size_t i = 0; i < scores.size(); ++i) {
    HR_REQUIRE(!std::isnan(scores[i]), ErrorCode::kModelFile, "engine: the logits behind token ", i, " are no numbers",
               kNotNumbers);
  }
  return scores;
}

}  // namespace headrace
