// Engine: steps in flight. A step is launched, sampled, and later retired: the host reads its tokens and commits them.
// The forward pass of the next step may be launched before that: input ids that the host does not know come from device
// memory. It is sampled once the host knows all tokens before its own, which it does long before the pass ends.
#include <algorithm>
#include <array>
#include <utility>

#include "headrace/engine/engine.h"
#include "headrace/engine/step_rows.h"

namespace headrace {
namespace {

bool is_lost(const ScheduledStep& step) { return step.sequence == nullptr; }  // its request has ended

// Returns true if the host can plan the sequence's next step before it knows this one's token.
bool is_predictable(const ScheduledStep& step) {
  const StepPlan& plan = step.plan;
  return is_lost(step) || plan.sample.empty() ||
         (step.device_reads() && plan.sample.size() == 1 && plan.logits == StepPlan::Logits::kRead);
}

}  // namespace

bool Engine::launch_first() {
  for (const int64_t id : std::exchange(to_preempt_, {})) {
    if (has(id)) scheduler_.preempt(*sequences_.at(id));
  }
  if (!warm_up_.empty()) {
    const auto states = model_.info().num_gdn_layers > 0 ? WarmUpQueue::States::kRecurrent : WarmUpQueue::States::kNone;
    in_step_ = {warm_up_.first()};
    const ForwardBatch& batch =
        warm_up_.next(static_cast<int32_t>(config_.runner.max_tokens), states, scheduler_.table(), &runner_.backend());
    runner_.launch(batch);
    runner_.choose({.logits = StepReads::Logits::kToHost});
    in_flight_.emplace_back();
    return true;
  }
  std::optional<std::vector<ScheduledStep>> planned;
  while (!planned) {
    planned = try_next_steps(Scheduler::Preempts::kIfNeeded);
    if (!planned || !planned->empty() || retries_.empty()) continue;
    end_retry();
    planned.reset();
  }
  in_flight_.push_back({.steps = std::move(*planned)});
  std::vector<ScheduledStep>& steps = in_flight_.back().steps;
  show_planned(steps);
  std::erase_if(steps, is_lost);
  if (steps.empty()) {
    in_flight_.pop_back();
    return false;
  }
  start_timer();
  launch();
  choose();
  return true;
}

void Engine::start_timer() {
  if (config_.least_step_rows) launched_at_ = std::chrono::steady_clock::now();
}

void Engine::choose_step_rows(int32_t rows) {
  if (!config_.least_step_rows || rows < kRowsMultiple) return;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - launched_at_;
  scheduler_.limit_rows(
      rows_of_step(rows, time.count(), *config_.least_step_rows, static_cast<int32_t>(config_.runner.max_tokens)));
  config_.least_step_rows.reset();
}

// A sequence that lacks pages may preempt others only while no token of theirs is in flight.
bool Engine::may_launch_next() const {
  using StepsAhead = EngineConfig::StepsAhead;
  const StepsAhead ahead = runner_.on_cpu() ? StepsAhead::kAlways : StepsAhead::kOnDevice;
  const std::vector<ScheduledStep>& steps = in_flight_.back().steps;
  return config_.steps_ahead >= ahead && strategy_->traits().runs_tokens_once && retries_.empty() &&
         to_preempt_.empty() && !scheduler_.lacks_room() && !steps.empty() &&
         std::ranges::all_of(steps, is_predictable);
}

void Engine::launch_next() {
  in_flight_.back().has_placeholders = true;
  const std::vector<ScheduledStep>& before = in_flight_.back().steps;
  if (!commit_placeholders(before)) return;
  std::optional<std::vector<ScheduledStep>> planned = try_next_steps(Scheduler::Preempts::kNever);
  if (!planned || planned->empty()) return;
  const std::vector<int32_t> from = inputs_from(before, *planned);
  in_flight_.push_back({.steps = std::move(*planned)});
  try {
    launch(from);
  } catch (...) {
    in_flight_.back().failed = std::current_exception();
  }
}

bool Engine::commit_placeholders(const std::vector<ScheduledStep>& steps) {
  const std::array<SampledToken, 1> unknown{};
  bool all = true;
  for (const ScheduledStep& step : steps) {
    if (is_lost(step)) continue;
    Sequence& s = *step.sequence;
    try {
      strategy_->commit(s, step.plan, std::span(unknown).first(step.plan.sample.size()));
      s.is_complete = !step.plan.sample.empty() && s.num_tokens() >= s.limit;
    } catch (...) {
      fail_alone(s.id);
      all = false;
    }
  }
  return all;
}

std::vector<int32_t> Engine::inputs_from(const std::vector<ScheduledStep>& before,
                                         const std::vector<ScheduledStep>& steps) const {
  std::vector<std::pair<int64_t, int32_t>> rows;  // by id: of logits
  rows.reserve(before.size());
  int32_t row = 0;
  for (const ScheduledStep& step : before) {
    if (!is_lost(step) && !step.plan.sample.empty())
      rows.emplace_back(step.sequence->id, row + step.plan.scored.size());
    row += step.plan.num_logits_rows();
  }
  std::ranges::sort(rows);
  std::vector<int32_t> from;
  from.reserve(steps.size());
  for (const ScheduledStep& step : steps) {
    from.resize(from.size() + static_cast<size_t>(step.plan.num_rows()), -1);
    const auto found = std::ranges::lower_bound(rows, std::pair(step.sequence->id, 0));
    if (found != rows.end() && found->first == step.sequence->id) from.back() = found->second;
  }
  return from;
}

void Engine::drain() {
  in_flight_.clear();
  while (runner_.num_in_flight() > 0) runner_.retire();
}

std::vector<StepOutput> Engine::run_step() {
  if (!in_flight_.empty() && std::ranges::all_of(in_flight_.front().steps, is_lost)) drain();
  if (!in_flight_.empty()) {
    note(in_flight_.front().steps);
    show_planned(in_flight_.front().steps);
    if (in_flight_.front().failed) std::rethrow_exception(std::exchange(in_flight_.front().failed, nullptr));
  } else if (!launch_first()) {
    return std::exchange(outputs_, {});
  }
  const bool ahead = may_launch_next();
  if (ahead) launch_next();
  InFlightStep& step = in_flight_.front();
  StepResult result = runner_.retire();
  keep_logprobs(step, std::move(result.logprobs));
  const std::vector<SampledToken> sampled = sampled_tokens(step, std::move(result));
  int32_t rows = 0;
  for (const ScheduledStep& one : step.steps) rows += one.plan.num_rows();
  choose_step_rows(rows);
  commit(step.steps, sampled, ahead ? Committed::kAssumed : Committed::kNothing);
  counters_.steps += step.steps.empty() ? 0 : 1;  // empty: a warm-up
  counters_.rows += rows;
  counters_.tokens += std::ranges::count_if(outputs_, [](const StepOutput& out) { return !out.error; });
  in_flight_.pop_front();
  start_timer();  // the step that runs began when the one before it ended
  if (!ahead) end_retry();
  if (!in_flight_.empty() && !in_flight_.front().failed && !std::ranges::all_of(in_flight_.front().steps, is_lost)) {
    try {
      choose();
    } catch (...) {
      in_flight_.front().failed = std::current_exception();
    }
  }
  return std::exchange(outputs_, {});
}

}  // namespace headrace
