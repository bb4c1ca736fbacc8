#include "headrace/engine/state_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {
namespace {

std::span<const int32_t> beginning(const Sequence& s, int32_t num_tokens) {
  return std::span(s.tokens).first(static_cast<size_t>(num_tokens));
}

}  // namespace

StateTable::StateTable(const RequestStatesConfig& config)
    : config_(config), states_("recurrent state", config.num_states) {}

int32_t StateTable::prefix_cache(const Sequence& s, int32_t pages) {
  const auto state = kept_.find(beginning(s, pages * config_.page_size));
  return state ? state->num_tokens / config_.page_size : 0;
}

void StateTable::give(Sequence& s, int32_t stored_pages) {
  s.state_slot = states_.alloc(1)->front();
  s.state_end = s.num_cached;
  if (s.num_cached > 0) {
    const auto state = kept_.find(beginning(s, s.num_cached));
    HR_ASSERT(state && state->num_tokens == s.num_cached);
    copies_.push_back({state->slot, s.state_slot});
  }
  if (config_.num_kept == 0) return;
  const int32_t parts = stored_pages * config_.page_size,
                last = (s.prompt_len - 1) / config_.page_size * config_.page_size;
  for (const int32_t at : {parts, last}) {
    if (at > (s.marks.empty() ? s.num_cached : s.marks.back().num_tokens)) s.marks.push_back({.num_tokens = at});
  }
}

void StateTable::share(Sequence& s, const Sequence& other) {
  copies_.push_back({other.state_slot, s.state_slot});
  s.state_end = s.num_cached;
  const auto text = beginning(s, s.num_cached);
  if (kept_.knows(text)) return;
  const auto slot = claim();
  if (!slot) return;
  copies_.push_back({other.state_slot, *slot});
  kept_.keep(text, *slot);
}

bool StateTable::make_room() {
  if (num_left_ == config_.num_kept) {
    const auto oldest = kept_.drop_oldest();
    if (!oldest) return false;
    give_up(*oldest);
  }
  ++num_left_;
  return true;
}

std::optional<int32_t> StateTable::claim() {
  if (!make_room()) return std::nullopt;
  return states_.alloc(1)->front();
}

void StateTable::give_up(int32_t claimed) {
  states_.free(std::array{claimed});
  --num_left_;
}

void StateTable::plan(ScheduledStep& step) {
  Sequence& s = *step.sequence;
  if (s.state_slot == kNoState) return;
  s.state_end = step.plan.stored_end(s.num_cached);
  if (s.num_cached >= s.prompt_len && s.num_cached % config_.page_size == 0) leave_before(step);
  for (StateMark& mark : s.marks) {
    if (mark.num_tokens <= s.num_cached || mark.num_tokens > s.state_end) continue;
    if (kept_.knows(beginning(s, mark.num_tokens))) continue;
    if (mark.slot == kNoState) mark.slot = claim().value_or(kNoState);
    if (mark.slot != kNoState) step.left.push_back(mark);
  }
}

// The step continues in another slot, so nothing is copied.
void StateTable::leave_before(ScheduledStep& step) {
  Sequence& s = *step.sequence;
  if (s.marks.empty() || s.marks.back().num_tokens < s.prompt_len) {
    const auto slot = claim();
    if (!slot) return;
    s.marks.push_back({.slot = *slot});
  }
  StateMark& last = s.marks.back();
  last.num_tokens = s.num_cached;
  std::swap(last.slot, s.state_slot);
  step.state_from = last.slot;
}

void StateTable::keep_passed(Sequence& s, int32_t most_tokens) {
  std::erase_if(s.marks, [&](const StateMark& mark) {
    if (mark.slot == kNoState || mark.num_tokens > std::min(most_tokens, s.num_cached)) return false;
    const auto text = beginning(s, mark.num_tokens);
    kept_.knows(text) ? give_up(mark.slot) : kept_.keep(text, mark.slot);
    return true;
  });
}

void StateTable::publish(Sequence& s) { keep_passed(s, s.prompt_len - 1); }

void StateTable::take_back(Sequence& s) {
  if (s.state_slot == kNoState) return;
  keep_passed(s, s.num_cached);
  for (const StateMark& mark : std::exchange(s.marks, {})) {
    if (mark.slot != kNoState) give_up(mark.slot);  // its step did not run
  }
  const int32_t slot = std::exchange(s.state_slot, kNoState), end = s.num_cached;
  const bool whole = end > 0 && end % config_.page_size == 0 && s.state_end == end;
  if (whole && !kept_.knows(beginning(s, end)) && make_room()) {
    kept_.keep(beginning(s, end), slot);
  } else {
    states_.free(std::array{slot});
  }
}

std::vector<StateCopy> StateTable::take_copies() { return std::exchange(copies_, {}); }

}  // namespace headrace
