// Assigns recurrent state slots to requests, and snapshots of their states to the prefix tree.
#pragma once
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "headrace/cache/slot_allocator.h"
#include "headrace/engine/page_table.h"
#include "headrace/engine/scheduled_step.h"

namespace headrace {

struct StateTableConfig {
  int32_t num_states = 0;  // slots; 0: no recurrent layers
  int32_t num_cached = 0;  // of these, at most, for snapshots
};

// A recurrent state is valid for one prefix length only. Each running request has one working slot; states are copied,
// so no slot is used by two requests. A request leaves snapshots at ends of whole pages, because K and V are shared
// there: behind the last whole page of its prompt, where its prompt leaves a text whose state is not cached, where
// another request waits for one, at the ends of prompt chunks, and behind the last whole page of its output. They
// belong to the nodes of the prefix tree. Not thread-safe.
class StateTable {
 public:
  // `pages`: not owned.
  StateTable(const StateTableConfig& config, PageTable& pages);

  // At most this many snapshots are taken within one step of a request.
  static constexpr int32_t kMostSnapshots = 4;

  bool any() const { return config_.num_states > 0; }
  bool caches_any() const { return config_.num_cached > 0; }
  bool any_free() const { return num_available() > 0; }
  int32_t num_available() const;  // free or evictable

  // Assigns a working slot to a sequence that has none.
  void give(Sequence& sequence);
  // Starts the sequence from the state at the end of its shared pages; none: from zeros. `computed`: tokens of its
  // prompt whose pages are computed.
  void start(Sequence& sequence, int32_t computed);
  // Asks for a snapshot behind the sequence's first `num_tokens` tokens, at the end of a page. False if its state is
  // further already, or if there is no room for snapshots.
  bool want(Sequence& sequence, int32_t num_tokens);
  // Adds to a planned step the snapshots that it takes.
  void plan(ScheduledStep& step);
  // Gives the snapshots of steps that have run to the sequence's published pages.
  void publish(Sequence& sequence);
  // Releases the sequence's slots, before PageTable::take_back. kYes: the prefix tree keeps its snapshots.
  void take_back(Sequence& sequence, PageTable::Keeps keeps);
  // Returns the copies to perform before the planned step runs, in this order.
  std::vector<StateCopy> take_copies() { return std::exchange(copies_, {}); }
  // Throws kInternal unless each slot is exactly one of free, cached and leased to some of `running`.
  void audit(std::span<Sequence* const> running) const;

 private:
  using Which = PrefixTree::Which;
  void reclaim();  // frees the slots of evicted pages
  bool make_room(Which which);
  std::optional<int32_t> claim(Which which);  // a slot for a snapshot
  void free(int32_t slot);
  void give_up(StateMark& mark);
  void mark_parts(Sequence& sequence, int32_t end);
  static StateMark& mark_at(Sequence& sequence, int32_t num_tokens);
  void leave_before(ScheduledStep& step);
  std::optional<int32_t> slot_to_go_on(Sequence& sequence);
  std::optional<int32_t> slot_for_mark(const Sequence& sequence);
  std::optional<int32_t> take_last_left(const Sequence& sequence);
  int32_t page_at(const Sequence& sequence, int32_t num_tokens) const;

  StateTableConfig config_;
  PageTable& pages_;
  SlotAllocator states_;
  int32_t num_marked_ = 0;  // slots of marks
  std::vector<StateCopy> copies_;
};

}  // namespace headrace
