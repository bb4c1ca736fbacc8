#include "headrace/engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace headrace {
namespace {

bool shares(const SchedulerConfig& c) { return c.keep_text == SchedulerConfig::KeepText::kYes; }

// State slots beyond one per running request.
int32_t num_kept_states(const SchedulerConfig& c) { return shares(c) ? std::max(0, c.num_states - c.max_requests) : 0; }

RequestPagesConfig pages_config(const SchedulerConfig& c, const DecodingStrategy& strategy) {
  using KeepText = RequestPagesConfig::KeepText;
  // Without a state, a recurrent model cannot reuse cached pages.
  const bool keeps = c.num_states == 0 || num_kept_states(c) > 0;
  return {.num_pages = c.num_pages,
          .page_size = c.page_size,
          .multiple = shares(c) ? strategy.traits().text_block : std::nullopt,
          .keep_text = keeps ? KeepText::kYes : KeepText::kNo};
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, const DecodingStrategy& strategy)
    : config_(config),
      strategy_(strategy),
      states_({.num_states = config.num_states,
               .num_kept = strategy.traits().text_block ? num_kept_states(config) : 0,
               .page_size = config.page_size}),
      pages_(pages_config(config, strategy)),
      table_(config.max_requests, config.max_context_len, config.page_size, config.num_pages) {}

int32_t Scheduler::pages_needed(const Sequence& s) const {
  return (most_stored(strategy_.traits(), s) + config_.page_size - 1) / config_.page_size;
}

void Scheduler::check_length(const Sequence& s) const {
  HR_REQUIRE(s.prompt_len > 0, ErrorCode::kInvalidArgument, "request ", s.id, ": the prompt is empty");
  HR_REQUIRE(s.prompt_len < config_.max_context_len, ErrorCode::kInvalidArgument, "request ", s.id, ": the prompt has ",
             s.prompt_len, " tokens, ", config_.context_name, " holds ", config_.max_context_len,
             " with at least one new token");
}

void Scheduler::add(Sequence& s) {
  check_length(s);
  const int32_t most = (config_.max_context_len + config_.page_size - 1) / config_.page_size;
  HR_REQUIRE(pages_needed(s) <= most, ErrorCode::kInvalidArgument, "request ", s.id, ": it needs ", pages_needed(s),
             " pages of ", config_.page_size, " tokens, a context of ", config_.max_context_len, " has ", most);
  HR_REQUIRE(pages_needed(s) <= config_.num_pages, ErrorCode::kInvalidArgument, "request ", s.id, ": it needs ",
             pages_needed(s), " pages of ", config_.page_size, " tokens, the pool has ", config_.num_pages);
  const int32_t rows = rows_needed(strategy_.traits(), s);
  HR_REQUIRE(rows <= config_.max_tokens_per_step, ErrorCode::kInvalidArgument, "request ", s.id,
             ": a step of strategy '", strategy_.name(), "' has up to ", rows, " rows, the engine runs at most ",
             config_.max_tokens_per_step);
  waiting_.push_back(&s);
}

bool Scheduler::admit(Sequence& s) {
  if (table_.available_size() == 0) return false;
  if (states_.any() && !states_.any_free()) return false;
  // Cheap check before texts are compared: pages after the prompt's whole pages are never shared.
  if (pages_needed(s) - s.prompt_len / config_.page_size > pages_.num_available()) return false;
  const auto in_common = [&](const Running& r) { return pages_.stored_in_common(s, *r.sequence); };
  const auto most = std::ranges::max_element(running_, {}, in_common);
  std::vector<int32_t> first = pages_.stored(s, most == running_.end() ? nullptr : most->sequence);
  const auto stored = static_cast<int32_t>(first.size());
  if (states_.any()) first.resize(static_cast<size_t>(states_.prefix_cache(s, stored)));
  if (!pages_.give(s, pages_needed(s), std::move(first))) return false;
  s.table_row = *table_.alloc();
  table_.write(s.table_row, 0, s.pages);
  if (states_.any()) {
    states_.give(s, stored);
    table_.set_state_slot(s.table_row, s.state_slot);
  }
  Running& one = running_.emplace_back(Running{.sequence = &s});
  follow(one);
  catch_up(one);
  return true;
}

void Scheduler::follow(Running& one) const {
  const Sequence& s = *one.sequence;
  one.ahead = nullptr;
  one.common_pages = s.num_cached / config_.page_size;
  for (const Running& other : running_) {
    if (other.sequence == &s) return;  // only earlier sequences can lead
    const Sequence& r = *other.sequence;
    const int32_t common = pages_.in_common(s, std::span(r.tokens).first(static_cast<size_t>(r.prompt_len)));
    if (common <= one.common_pages) continue;
    // Its state is past the common prefix already, or will skip it.
    if (states_.any() && r.num_cached > common * config_.page_size) continue;
    if (states_.any() && other.ahead != nullptr && other.common_pages > common) continue;
    one.ahead = &r;
    one.common_pages = common;
  }
}

void Scheduler::catch_up(Running& one) {
  if (one.ahead == nullptr) return;
  Sequence& s = *one.sequence;
  HR_ASSERT(!states_.any() || one.ahead->num_cached <= one.common_pages * config_.page_size);
  const int32_t stored = std::min(one.common_pages, pages_.stored_in_common(s, *one.ahead));
  const bool all = stored == one.common_pages;
  if (states_.any() && !all) return;  // the only state to copy is at the end of the common prefix
  if (stored * config_.page_size > s.num_cached) {
    pages_.share(s, *one.ahead, stored);
    table_.write(s.table_row, 0, s.pages);
    if (states_.any()) states_.share(s, *one.ahead);
  }
  if (all) one.ahead = nullptr;
}

int32_t Scheduler::rows_to_copy(const Sequence& s) const {
  int32_t rows = std::numeric_limits<int32_t>::max();
  if (!states_.any()) return rows;
  for (const Running& other : running_) {
    if (other.ahead == &s) rows = std::min(rows, other.common_pages * config_.page_size - s.num_cached);
  }
  return rows;
}

bool Scheduler::any_held_back() const {
  return std::ranges::any_of(running_, [](const Running& one) { return one.ahead != nullptr; });
}

std::vector<ScheduledStep> Scheduler::plan(const std::vector<Sequence*>& order) {
  std::vector<ScheduledStep> steps;
  int32_t budget = config_.max_tokens_per_step;
  for (Sequence* sequence : order) {
    if (budget == 0) break;
    in_plan_ = {sequence->id};
    StepPlan plan = strategy_.plan(*sequence, std::min(budget, rows_to_copy(*sequence)));
    if (plan.spans.empty()) continue;  // its step does not fit the remaining budget
    const int32_t rows = plan.num_rows();
    HR_REQUIRE(0 < rows && rows <= budget, ErrorCode::kInternal, "request ", sequence->id, ": strategy '",
               strategy_.name(), "' planned ", rows, " rows, expected 1 to ", budget);
    budget -= rows;
    steps.push_back({.sequence = sequence, .plan = std::move(plan)});
  }
  in_plan_.clear();
  return steps;
}

void Scheduler::admit_waiting() {
  while (!waiting_.empty()) {
    in_plan_ = {waiting_.front()->id};
    if (!admit(*waiting_.front())) break;
    waiting_.pop_front();
  }
}

std::vector<ScheduledStep> Scheduler::next(Admits admits) {
  for (Running& one : running_) {
    in_plan_ = {one.sequence->id};
    states_.publish(*one.sequence);
    catch_up(one);
  }
  if (admits == Admits::kWhoFits) admit_waiting();
  in_plan_.clear();
  std::vector<Sequence*> order;
  for (const Running& one : running_) {
    if (one.ahead == nullptr) order.push_back(one.sequence);
  }
  std::ranges::stable_sort(order, {}, [](const Sequence* s) { return s->num_cached < s->prompt_len ? 1 : 0; });
  // plan all before any state changes: an error then concerns one request only
  std::vector<ScheduledStep> steps = plan(order);
  for (ScheduledStep& step : steps) {
    in_plan_.push_back(step.sequence->id);
    states_.plan(step);
    table_.set_state_slot(step.sequence->table_row, step.sequence->state_slot);
  }
  in_plan_.clear();
  return steps;
}

void Scheduler::release(Sequence& s) {
  std::erase(waiting_, &s);
  const auto found = std::ranges::find(running_, &s, &Running::sequence);
  if (found == running_.end()) return;
  std::vector<Sequence*> followers;
  for (Running& other : running_) {
    if (other.ahead != &s) continue;
    catch_up(other);
    followers.push_back(other.sequence);
  }
  running_.erase(found);
  for (Running& other : running_) {
    if (std::ranges::find(followers, other.sequence) != followers.end()) follow(other);
  }
  states_.take_back(s);
  pages_.take_back(s);
  table_.free(s.table_row);
}

}  // namespace headrace
