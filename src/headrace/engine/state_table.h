// The recurrent states of requests: the one that each works in, and those that it leaves on its way for others that
// begin with the same text.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headrace/cache/slot_allocator.h"
#include "headrace/cache/state_cache.h"
#include "headrace/engine/scheduled_step.h"

namespace headrace {

struct RequestStatesConfig {
  int32_t num_states = 0;  // 0: of a model without them
  int32_t num_kept = 0;    // of these, at most, that are no running request's own
  int32_t page_size = 1;
};

// A request works in a slot of its own. It leaves a state at ends of whole pages, since keys and values are shared
// there: where its prompt parted from a stored text, whose state there nobody has; behind the last page of its prompt;
// and at the last page of its output. The first two are everybody's as soon as the step has run, the last one when the
// request is over. States are copied, so that none is read by two. Those that were used longest ago give way. Not
// thread-safe.
class StateTable {
 public:
  explicit StateTable(const RequestStatesConfig& config);

  bool any() const { return config_.num_states > 0; }
  bool any_free() const { return states_.available_size() > 0; }
  int32_t num_available() const { return states_.available_size() + kept_.size(); }  // no running request's

  // Of the sequence's first `pages` pages, those behind which its state is kept.
  int32_t prefix_cache(const Sequence& sequence, int32_t pages);
  // A state for a sequence that is cached behind its prefix_cache(); its first `stored_pages` pages are stored
  // somewhere.
  void give(Sequence& sequence, int32_t stored_pages);
  // The state of `other` for a sequence that is cached up to where that one is. Where two part, a third one may.
  void share(Sequence& sequence, const Sequence& other);
  // What a step that is planned does with states.
  void plan(ScheduledStep& step);
  // What the sequence's prompt left in steps that have run is everybody's.
  void publish(Sequence& sequence);
  // Takes the sequence's state, and keeps those that it left.
  void take_back(Sequence& sequence);
  // What the step that was planned reads besides: to be copied before it runs, in this order.
  std::vector<StateCopy> take_copies();

 private:
  // Room for a state that is left, maybe the oldest one's; not when running requests have all of it.
  bool make_room();
  std::optional<int32_t> claim();  // a slot with room
  void give_up(int32_t claimed);
  void keep_passed(Sequence& sequence, int32_t most_tokens);
  void leave_before(ScheduledStep& step);

  RequestStatesConfig config_;
  SlotAllocator states_;
  StateCache kept_;
  int32_t num_left_ = 0;  // slots that were claimed: kept ones, and those of marks
  std::vector<StateCopy> copies_;
};

}  // namespace headrace
