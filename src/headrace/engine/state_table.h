// Assigns recurrent state slots to requests, and snapshots of their states to the state cache for requests with a
// common prefix.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "headrace/cache/slot_allocator.h"
#include "headrace/cache/state_cache.h"
#include "headrace/engine/scheduled_step.h"

namespace headrace {

struct RequestStatesConfig {
  int32_t num_states = 0;  // slots; 0: no recurrent layers
  int32_t num_kept = 0;    // of these, at most, for snapshots
  int32_t page_size = 1;
};

// A recurrent state is valid for one prefix length only. Each running request has one working slot.
// It also leaves snapshots at ends of whole pages, because K and V are shared there: where its prompt leaves a stored
// text whose state is not cached, behind the last whole page of its prompt, and at the last whole page of its output.
// The first two are shared as soon as the step has run, the last one when the request ends.
// States are copied, so no slot is used by two requests. The least recently used snapshots are evicted. Not
// thread-safe.
class StateTable {
 public:
  explicit StateTable(const RequestStatesConfig& config);

  bool any() const { return config_.num_states > 0; }
  bool any_free() const { return states_.available_size() > 0; }
  int32_t num_available() const { return states_.available_size() + kept_.size(); }  // free or evictable

  // Returns how many of the sequence's first `pages` pages have a cached state at their end.
  int32_t prefix_cache(const Sequence& sequence, int32_t pages);
  // Assigns a state to a sequence whose num_cached is the end of its prefix_cache() pages. `stored_pages`: pages of its
  // prompt whose K and V are stored.
  void give(Sequence& sequence, int32_t stored_pages);
  // Copies the leader's state to a follower that has reached the same prefix length, and caches another copy.
  void share(Sequence& sequence, const Sequence& other);
  // Adds to a planned step the snapshots that it takes.
  void plan(ScheduledStep& step);
  // Moves the snapshots of the sequence's prompt, from steps that have run, to the state cache.
  void publish(Sequence& sequence);
  // Releases the sequence's state; the state cache keeps its snapshots.
  void take_back(Sequence& sequence);
  // Returns the copies to perform before the planned step runs, in this order.
  std::vector<StateCopy> take_copies();

 private:
  // Reserves room for one snapshot, evicting the oldest one if needed. Returns false if marks of running requests use
  // all of it.
  bool make_room();
  std::optional<int32_t> claim();  // a slot for a snapshot
  void give_up(int32_t claimed);
  void keep_passed(Sequence& sequence, int32_t most_tokens);
  void leave_before(ScheduledStep& step);

  RequestStatesConfig config_;
  SlotAllocator states_;
  StateCache kept_;
  int32_t num_left_ = 0;  // claimed slots: cached ones, and those of marks
  std::vector<StateCopy> copies_;
};

}  // namespace headrace
