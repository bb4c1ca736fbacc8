// Asynchronous scheduling of decode steps: the next step is launched before the host reads the last one's tokens, and
// takes them from device memory.
#include <algorithm>
#include <array>
#include <utility>

#include "headrace/engine/engine.h"

namespace headrace {
namespace {

// Returns true if the sequence's next position does not depend on which token the step decides.
bool decides_one(const ScheduledStep& step) {
  const StepPlan& plan = step.plan;
  return step.device_reads() && plan.spans.size() == 1 && plan.spans.front().keys.q_len == 1 &&
         plan.sample.size() == 1 && plan.logits == StepPlan::Logits::kRead;
}

}  // namespace

bool Engine::take_off_tokens(const std::vector<ScheduledStep>& steps, const ForwardBatch& batch) {
  using StepsAhead = EngineConfig::StepsAhead;
  const StepsAhead ahead = runner_.on_cpu() ? StepsAhead::kAlways : StepsAhead::kOnDevice;
  if (config_.steps_ahead < ahead || !strategy_->runs_rows_once() || !std::ranges::all_of(steps, decides_one))
    return false;
  queue(steps, spots_of(steps), batch, ModelRunner::Inputs::kOfBatch);
  flight_ = steps;
  flight_ends_ = false;
  return true;
}

// True if no request joined or left, all running ones are in the step, and only an end token could end one of them now.
bool Engine::goes_on(const std::vector<ScheduledStep>& steps) const {
  const auto has_room = [](const ScheduledStep& step) {
    return step.sequence->num_tokens() + 1 < step.sequence->limit;
  };
  return !flight_ends_ && steps.size() == scheduler_.num_running() && std::ranges::all_of(steps, has_room);
}

void Engine::queue_next(const std::vector<ScheduledStep>& before) {
  const std::array<SampledToken, 1> to_come{};
  for (const ScheduledStep& step : before) strategy_->commit(*step.sequence, step.plan, to_come);
  flight_ = next_in_order(before, Scheduler::Admits::kNobody);
  HR_REQUIRE(flight_.size() == before.size(), ErrorCode::kInternal, "engine: the device goes on with ", before.size(),
             " requests, the scheduler with ", flight_.size());
  queue(flight_, spots_of(flight_), builder_.build(flight_, scheduler_.table(), &runner_.backend()),
        ModelRunner::Inputs::kLastTokens);
}

void Engine::drop_flight() {
  flight_.clear();
  while (runner_.num_queued() > 0) runner_.take_tokens();
}

std::vector<StepOutput> Engine::land_tokens() {
  const std::vector<ScheduledStep> landed = std::exchange(flight_, {});
  const bool ahead = goes_on(landed);
  if (ahead) queue_next(landed);
  std::vector<StepOutput> outputs = commit(landed, Sampler::describe(runner_.take_tokens(), spots_of(landed)),
                                           ahead ? Committed::kAssumed : Committed::kNothing);
  ++counters_.steps;
  counters_.rows += std::ssize(landed);
  counters_.tokens += std::ssize(outputs);
  return outputs;
}

}  // namespace headrace
