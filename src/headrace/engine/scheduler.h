// Chooses the sequences of the next step and assigns pages, states and table rows.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "headrace/cache/req_to_token_pool.h"
#include "headrace/engine/page_table.h"
#include "headrace/engine/scheduled_step.h"
#include "headrace/engine/state_table.h"

namespace headrace {

struct SchedulerConfig {
  int32_t num_pages = 0, page_size = 64;
  int32_t max_requests = 1;
  int32_t num_states = 0;  // recurrent state slots; 0 for a model without them
  int32_t max_context_len = 0;
  std::string context_name = "the context (max_model_len)";  // its name in error messages
  int32_t max_tokens_per_step = 512;
  // kYes: prefix caching. A request reuses the pages of a running or finished request whose prompt begins with the same
  // tokens, if the strategy allows it.
  // Recurrent models also need a cached state there; num_states - max_requests slots are used for them.
  enum class KeepText : uint8_t { kNo, kYes } keep_text = KeepText::kNo;
};

// Reserves pages for a sequence's whole prompt and output at admission, so a running one never lacks memory. Sequences
// that do not fit wait in order of arrival.
// If a running sequence (the leader) has not yet computed a prefix that a later one (the follower) shares, the follower
// waits and then shares its pages. A sequence only waits for earlier ones, so the first never waits. A leader that ends
// is not waited for. Not thread-safe.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, const DecodingStrategy& strategy);  // strategy: not owned

  // Error kInvalidArgument if the prompt is empty or fills the context; add() checks it, too. Call it before the
  // strategy appends tokens to the prompt.
  void check_length(const Sequence& sequence) const;
  // Queues a sequence, which must outlive its release(). Error kInvalidArgument, without effect, if it could never run:
  // empty prompt, full context, more pages than the pool has, or steps with more tokens than max_tokens_per_step.
  void add(Sequence& sequence);
  // Plans the next step within max_tokens_per_step: sequences with a cached prompt first, then prompt chunks. kNobody:
  // admits no waiting sequence.
  enum class Admits : uint8_t { kWhoFits, kNobody };
  std::vector<ScheduledStep> next(Admits admits = Admits::kWhoFits);
  // After next() has thrown: ids of the sequences it failed for. They must not run again; the others are unchanged.
  const std::vector<int64_t>& in_plan() const { return in_plan_; }
  // Returns the state copies to perform before the step runs, in this order.
  std::vector<StateCopy> take_state_copies() { return states_.take_copies(); }
  // Frees what a finished or aborted sequence holds, queued or running.
  void release(Sequence& sequence);

  size_t num_running() const { return running_.size(); }
  bool any_waiting() const { return !waiting_.empty(); }
  bool any_held_back() const;  // a follower waits for its leader
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const ReqToTokenPool& table() const { return table_; }
  int32_t free_pages() const { return pages_.num_available(); }    // with evictable pages of the prefix cache
  int32_t free_states() const { return states_.num_available(); }  // with evictable states of the state cache

 private:
  struct Running {
    Sequence* sequence = nullptr;  // not owned
    const Sequence* ahead =
        nullptr;  // leader that stores the first common_pages pages; null: runs by itself; not owned
    int32_t common_pages = 0;
  };

  int32_t pages_needed(const Sequence& sequence) const;
  bool admit(Sequence& sequence);
  void admit_waiting();  // in order of arrival, until one does not fit
  // Sets the leader of `one`: the earlier sequence with the longest common prefix, if longer than what `one` has
  // cached.
  void follow(Running& one) const;
  // Shares the pages that the leader has stored so far.
  void catch_up(Running& one);
  // Plans these sequences in this order within the budget; changes none of them.
  std::vector<ScheduledStep> plan(const std::vector<Sequence*>& order);
  // Tokens that a leader may run before it must pause for a follower to copy its state.
  int32_t rows_to_copy(const Sequence& sequence) const;

  SchedulerConfig config_;
  const DecodingStrategy& strategy_;
  StateTable states_;
  PageTable pages_;
  ReqToTokenPool table_;
  std::deque<Sequence*> waiting_;  // not owned
  std::vector<Running> running_;   // in order of admission
  std::vector<int64_t> in_plan_;
};

}  // namespace headrace
