// Engine: steps in flight. A step is launched, and later retired: the host reads its rows and commits them. A step of
// single tokens may be followed before it is retired; the next one takes its input ids from device memory.
#include <algorithm>
#include <array>
#include <utility>

#include "headrace/engine/engine.h"
#include "headrace/engine/step_rows.h"

namespace headrace {
namespace {

// Returns true if the sequence's next position does not depend on which token the step decides.
bool decides_one(const ScheduledStep& step) {
  const StepPlan& plan = step.plan;
  return step.device_reads() && plan.spans.size() == 1 && plan.spans.front().keys.q_len == 1 &&
         plan.sample.size() == 1 && plan.logits == StepPlan::Logits::kRead;
}

bool is_lost(const ScheduledStep& step) { return step.sequence == nullptr; }  // aborted while its step ran

}  // namespace

Engine::Depth Engine::depth_of(const std::vector<ScheduledStep>& steps) const {
  using StepsAhead = EngineConfig::StepsAhead;
  const StepsAhead ahead = runner_.on_cpu() ? StepsAhead::kAlways : StepsAhead::kOnDevice;
  // A waiting follower may join the next step; steps that run ahead would not stop for it.
  const bool two = config_.steps_ahead >= ahead && strategy_->traits().runs_tokens_once &&
                   !scheduler_.any_held_back() && std::ranges::all_of(steps, decides_one);
  return two ? Depth::kTwo : Depth::kOne;
}

bool Engine::launch_first() {
  batch_changed_ = false;
  if (!warm_up_.empty()) {
    const auto states = model_.info().num_gdn_layers > 0 ? WarmUpQueue::States::kRecurrent : WarmUpQueue::States::kNone;
    in_step_ = {warm_up_.first()};
    const ForwardBatch& batch =
        warm_up_.next(static_cast<int32_t>(config_.runner.max_tokens), states, scheduler_.table(), &runner_.backend());
    runner_.launch(batch, {.logits = StepReads::Logits::kToHost});
    in_flight_.emplace_back();
    return true;
  }
  std::optional<std::vector<ScheduledStep>> planned;
  while (!planned) {
    planned = try_next_steps(Scheduler::Admits::kWhoFits);
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
  if (config_.least_step_rows) launched_at_ = std::chrono::steady_clock::now();
  launch(ModelRunner::Inputs::kOfBatch);
  return true;
}

void Engine::choose_step_rows(int32_t rows) {
  const auto launched_at = std::exchange(launched_at_, std::nullopt);
  if (!launched_at || rows < kRowsMultiple) return;
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - *launched_at;
  scheduler_.limit_rows(
      rows_of_step(rows, time.count(), *config_.least_step_rows, static_cast<int32_t>(config_.runner.max_tokens)));
  config_.least_step_rows.reset();
}

// True if no request joined or left, all running ones are in the step, and only an end token could end one of them now.
bool Engine::may_launch_next() const {
  const InFlightStep& last = in_flight_.back();
  const auto has_room = [](const ScheduledStep& step) {
    return step.sequence->num_tokens() + 1 < step.sequence->limit;
  };
  return last.depth == Depth::kTwo && !batch_changed_ && retries_.empty() &&
         last.steps.size() == scheduler_.num_running() && std::ranges::all_of(last.steps, has_room);
}

void Engine::launch_next() {
  const std::vector<ScheduledStep>& before = in_flight_.back().steps;
  if (!commit_placeholders(before)) return;
  std::optional<std::vector<ScheduledStep>> planned = try_next_steps(Scheduler::Admits::kNobody);
  if (!planned) return;
  in_flight_.push_back({.steps = in_order_of(before, std::move(*planned))});
  launch(ModelRunner::Inputs::kLastTokens);
}

bool Engine::commit_placeholders(const std::vector<ScheduledStep>& steps) {
  const std::array<SampledToken, 1> unknown{};
  for (const ScheduledStep& step : steps) {
    try {
      strategy_->commit(*step.sequence, step.plan, unknown);
    } catch (...) {
      fail_alone(step.sequence->id);
    }
  }
  return std::ranges::none_of(steps, is_lost);
}

std::vector<ScheduledStep> Engine::in_order_of(const std::vector<ScheduledStep>& before,
                                               std::vector<ScheduledStep> planned) {
  auto at = planned.begin();
  for (const ScheduledStep& one : before) {  // most are at their places
    const auto same = std::ranges::find(at, planned.end(), one.sequence, &ScheduledStep::sequence);
    if (same == planned.end()) break;
    if (same != at) std::iter_swap(same, at);
    ++at;
  }
  HR_REQUIRE(at == planned.end() && planned.size() == before.size(), ErrorCode::kInternal,
             "engine: the device goes on with ", before.size(), " requests, the scheduler with ", planned.size());
  return planned;
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
  } else if (!launch_first()) {
    return std::exchange(outputs_, {});
  }
  const bool ahead = may_launch_next() && scheduler_.make_room_for_next();
  if (ahead) launch_next();
  const std::vector<ScheduledStep>& steps = in_flight_.front().steps;
  const std::vector<SampledToken> sampled = sampled_tokens(steps, runner_.retire());
  int32_t rows = 0;
  for (const ScheduledStep& one : steps) rows += one.plan.num_rows();
  choose_step_rows(rows);
  commit(steps, sampled, ahead ? Committed::kAssumed : Committed::kNothing);
  counters_.steps += steps.empty() ? 0 : 1;  // empty: a warm-up
  counters_.rows += rows;
  counters_.tokens += std::ranges::count_if(outputs_, [](const StepOutput& out) { return !out.error; });
  in_flight_.pop_front();
  if (!ahead) end_retry();
  return std::exchange(outputs_, {});
}

}  // namespace headrace
