// Engine steps of the device-side denoise loop: the host commits the last step's tokens while the next step runs.
#include <algorithm>
#include <utility>

#include "headrace/decoding/device_state.h"
#include "headrace/engine/engine.h"

namespace headrace {

namespace {

// About the longest KV length of the step after `steps`: each request appends at most one block.
int32_t most_keys_of_steps(const std::vector<ScheduledStep>& steps, int32_t block_size) {
  int32_t keys = 0;
  for (const ScheduledStep& step : steps) {
    if (step.sequence != nullptr) keys = std::max(keys, step.sequence->num_tokens() + block_size);
  }
  return keys;
}

}  // namespace

void Engine::note_host(const std::vector<ScheduledStep>& steps) {
  const DiffusionInfo info = model_.info().diffusion.value_or(DiffusionInfo{});
  for (const ScheduledStep& step : steps) {
    if (const auto reason = needs_host(*step.sequence, info)) host_reasons_.add(*reason);
  }
}

bool Engine::take_off(const std::vector<ScheduledStep>& steps, const ForwardBatch& batch) {
  DenoiseLoop* loop = runner_.denoise_loop();
  if (loop == nullptr || !runner_.holds_blocks(batch) || batch.logits_rows.empty()) return false;
  if (steps.size() < scheduler_.num_running()) {  // the loop would not stop for requests left out of this step
    host_reasons_.add("a step has no rows for all requests that run");
    return false;
  }
  const int32_t size = loop->config().block_size, each = loop->config().tokens_each();
  std::vector<DenoiseState> states;
  std::vector<int32_t> tokens;
  std::vector<int64_t> pages;
  for (const ScheduledStep& step : steps) {
    const Sequence& s = *step.sequence;
    const auto state = strategy_->denoise_state(s);
    if (!state) {
      note_host(steps);
      return false;
    }
    states.push_back(*state);
    pages.push_back(static_cast<int64_t>(s.pages.size()));
    const int32_t first = state->has_canvas() ? 0 : state->begin - size;
    for (int32_t p = first; p < first + each; ++p) {
      tokens.push_back(p < 0 || p >= s.num_tokens() ? 0 : s.tokens[static_cast<size_t>(p)]);
    }
  }
  int64_t most = 0;
  for (const DenoiseState& state : states) most += state.most_rows(size);
  if (most > config_.runner.max_tokens || !loop->holds(states)) {  // later steps must fit, too
    const int64_t held = std::min<int64_t>(config_.runner.max_tokens, loop->config().most_rows());
    host_reasons_.add(str("requests may have more than ", held, " rows together, what a graph holds"));
    return false;
  }
  loop->load(states, tokens);
  runner_.start_blocks(batch, pages);
  flight_ = steps, flight_of_ = Flight::kBlocks;
  flight_ends_ = false;
  return true;
}

std::vector<StepOutput> Engine::land() {
  DenoiseLoop& loop = *runner_.denoise_loop();
  const DenoiseReport next = loop.wait();
  const std::vector<ScheduledStep> landed = std::exchange(flight_, {});
  // When a request ends, a waiting one may be admitted.
  const bool changes = flight_ends_ || (scheduler_.any_waiting() && next.running < static_cast<int32_t>(landed.size()));
  const bool goes_on = next.running > 0 && !changes;
  if (goes_on) runner_.next_blocks(next, most_keys_of_steps(landed, loop.config().block_size));
  std::vector<StepOutput> outputs = commit(landed, Sampler::describe(loop.decided()));
  ++counters_.steps;
  ++counters_.device_steps;
  for (const ScheduledStep& one : landed) counters_.rows += one.plan.num_rows();
  counters_.tokens += static_cast<int64_t>(outputs.size());
  if (!goes_on) return outputs;
  flight_ = next_in_order(landed, Scheduler::Admits::kWhoFits);
  int32_t rows = 0, samples = 0;
  for (const ScheduledStep& one : flight_) {
    rows += one.plan.num_rows();
    samples += static_cast<int32_t>(one.plan.sample.size());
  }
  HR_REQUIRE(rows == next.rows && samples == next.logits_rows, ErrorCode::kInternal, "engine: the device goes on with ",
             next.rows, " rows, ", next.logits_rows, " of them undecided, the strategy with ", rows, " and ", samples);
  return outputs;
}

}  // namespace headrace
