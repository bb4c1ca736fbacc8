#include "headrace/engine/state_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "headrace/core/error.h"

namespace headrace {

StateTable::StateTable(const StateTableConfig& config, PageTable& pages)
    : config_(config), pages_(pages), states_("recurrent state", config.num_states) {}

int32_t StateTable::num_available() const {
  return states_.available_size() + pages_.tree().num_states() + pages_.num_freed_states();
}

void StateTable::reclaim() { states_.free(pages_.take_freed_states()); }
void StateTable::free(int32_t slot) { states_.free(std::array{slot}); }

void StateTable::give(Sequence& s) {
  reclaim();
  if (states_.available_size() == 0) free(*pages_.tree().evict_state(Which::kAny));
  s.state_slot = states_.alloc(1)->front();
  s.state_end = 0;
}

// Returns the published page that ends there, or 0.
int32_t StateTable::page_at(const Sequence& s, int32_t num_tokens) const {
  const int32_t pages = num_tokens / pages_.page_size();
  const bool published = pages > 0 && pages <= s.num_computed_pages && num_tokens % pages_.page_size() == 0;
  return published ? s.pages[static_cast<size_t>(pages) - 1] : 0;
}

void StateTable::start(Sequence& s, int32_t computed) {
  s.state_end = s.num_cached;
  if (s.num_cached > 0) {
    const int32_t page = s.pages[static_cast<size_t>(s.num_tree_pages) - 1];
    copies_.push_back({pages_.tree().state_of(page), s.state_slot});
    pages_.tree().use_state(page);
  }
  const int32_t end = pages_.most_shared(s) * pages_.page_size();
  for (const int32_t at : {computed, end}) want(s, at);
  mark_parts(s, end);
}

StateMark& StateTable::mark_at(Sequence& s, int32_t num_tokens) {
  const auto at = std::ranges::lower_bound(s.marks, num_tokens, {}, &StateMark::num_tokens);
  const bool is_new = at == s.marks.end() || at->num_tokens != num_tokens;
  return is_new ? *s.marks.insert(at, {.num_tokens = num_tokens}) : *at;
}

bool StateTable::want(Sequence& s, int32_t num_tokens) {
  if (config_.num_cached == 0 || num_tokens <= s.num_cached) return false;
  mark_at(s, num_tokens).is_optional = false;
  return true;
}

// Half, a quarter and an eighth before the end: a prompt that parts from this one computes at most about twice what it
// would with a state there. They take no state from other texts either.
void StateTable::mark_parts(Sequence& s, int32_t end) {
  constexpr int32_t kLeastPages = 16;
  const int32_t page_size = pages_.page_size(), length = end - s.num_cached;
  if (config_.num_cached == 0 || length < kLeastPages * page_size) return;
  for (const int32_t part : {2, 4, 8}) {
    const size_t before = s.marks.size();
    StateMark& mark = mark_at(s, (end - length / part) / page_size * page_size);
    if (s.marks.size() > before) mark.is_optional = true;
  }
}

bool StateTable::make_room(Which which) {
  reclaim();
  if (pages_.tree().num_states() + num_marked_ < config_.num_cached) return true;
  const auto slot = pages_.tree().evict_state(which);
  if (slot) free(*slot);
  return slot.has_value();
}

std::optional<int32_t> StateTable::claim(Which which) {
  if (!make_room(which)) return std::nullopt;
  return states_.alloc(1)->front();
}

void StateTable::give_up(StateMark& mark) {
  if (mark.slot == kNoState) return;
  free(std::exchange(mark.slot, kNoState));
  --num_marked_;
}

void StateTable::plan(ScheduledStep& step) {
  Sequence& s = *step.sequence;
  if (s.state_slot == kNoState) return;
  const int32_t end = step.plan.stored_end(s.num_cached);
  for (const bool optional : {false, true}) {
    for (StateMark& mark : s.marks) {
      if (mark.is_optional != optional || mark.num_tokens <= s.num_cached || mark.num_tokens > end) continue;
      if (std::ssize(step.left) == kMostSnapshots) break;
      if (mark.slot == kNoState) {
        if (const auto slot = optional ? claim(Which::kSuperseded) : slot_for_mark(s)) mark.slot = *slot, ++num_marked_;
      }
      if (mark.slot != kNoState) step.left.push_back(mark);
    }
  }
  std::ranges::sort(step.left, {}, &StateMark::num_tokens);
  if (s.state_end == s.num_cached) leave_before(step);
  s.state_end = end;
}

// The step goes on in another slot, so nothing is copied. It reads the first one, which stays a mark's until then.
void StateTable::leave_before(ScheduledStep& step) {
  Sequence& s = *step.sequence;
  const int32_t page = page_at(s, s.num_cached);
  if (page == 0 || pages_.tree().state_of(page) != PrefixTree::kNoSlot) return;
  const auto slot = slot_to_go_on(s);
  if (!slot) return;
  step.state_from = std::exchange(s.state_slot, *slot);
  mark_at(s, s.num_cached).slot = *step.state_from;
  ++num_marked_;
  s.last_left = s.num_cached;
}

// The output's last state moves along. A chunk's end takes no state from other texts.
std::optional<int32_t> StateTable::slot_to_go_on(Sequence& s) {
  const bool decodes = s.last_left >= s.prefill_len;
  std::optional<int32_t> slot = decodes ? take_last_left(s) : std::nullopt;
  if (!slot) slot = claim(Which::kSuperseded);
  return slot ? slot : take_last_left(s);
}

// Returns the slot of the state that the sequence left last, which the one that it leaves next supersedes.
std::optional<int32_t> StateTable::take_last_left(const Sequence& s) {
  PrefixTree& tree = pages_.tree();
  const int32_t page = page_at(s, s.last_left);
  const bool has_it = page != 0 && tree.state_of(page) != PrefixTree::kNoSlot;
  return has_it && tree.num_children(page) == 1 ? std::optional(tree.detach_state(page)) : std::nullopt;
}

std::optional<int32_t> StateTable::slot_for_mark(const Sequence& s) {
  auto slot = claim(Which::kSuperseded);
  if (!slot) slot = take_last_left(s);
  return slot ? slot : claim(Which::kAny);
}

void StateTable::publish(Sequence& s) {
  std::erase_if(s.marks, [&](StateMark& mark) {
    if (mark.num_tokens > s.num_cached) return false;
    const int32_t page = page_at(s, mark.num_tokens);
    if (mark.slot != kNoState && page == 0) return false;  // not published yet
    if (mark.slot != kNoState && pages_.tree().attach_state(page, mark.slot)) {
      --num_marked_;
    } else {
      give_up(mark);
    }
    return true;
  });
}

void StateTable::take_back(Sequence& s, PageTable::Keeps keeps) {
  if (s.state_slot == kNoState) return;
  if (keeps == PageTable::Keeps::kYes) publish(s);
  for (StateMark& mark : s.marks) give_up(mark);
  s.marks.clear();
  const int32_t slot = std::exchange(s.state_slot, kNoState);
  const int32_t page = keeps == PageTable::Keeps::kYes && s.state_end == s.num_cached ? page_at(s, s.num_cached) : 0;
  const bool is_new = page != 0 && pages_.tree().state_of(page) == PrefixTree::kNoSlot;
  if (is_new && config_.num_cached > 0 && make_room(Which::kAny)) {
    pages_.tree().attach_state(page, slot);
  } else {
    free(slot);
  }
  s.last_left = 0;
}

void StateTable::audit(std::span<Sequence* const> running) const {
  int32_t leased = 0, marked = 0;
  const auto check = [&](int32_t slot, int64_t id) {
    HR_REQUIRE(!states_.is_free(slot), ErrorCode::kInternal, "audit: request ", id, " has state ", slot,
               ", which is free");
    ++leased;
  };
  for (const Sequence* s : running) {
    if (s->state_slot != kNoState) check(s->state_slot, s->id);
    for (const StateMark& mark : s->marks) {
      if (mark.slot == kNoState) continue;
      check(mark.slot, s->id);
      ++marked;
    }
  }
  HR_REQUIRE(marked == num_marked_, ErrorCode::kInternal, "audit: ", marked, " marks have a state, expected ",
             num_marked_);
  HR_REQUIRE(leased + num_available() == config_.num_states, ErrorCode::kInternal, "audit: ", leased,
             " states are leased and ", num_available(), " free or cached, expected ", config_.num_states);
}

}  // namespace headrace
