// Chooses the sequences of the next step and assigns pages, states and table rows.
#pragma once
#include <algorithm>
#include <deque>
#include <span>
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

// Gives a sequence the pages of its text at admission and one page more whenever its next step needs it. If none is
// free, cached text gives way, then the youngest running sequence is preempted: it loses its pages, waits at the head
// of the queue, and runs its text again from what is still cached. Sequences that do not fit wait in order of arrival.
// A sequence whose text another one is about to compute waits for it and then shares its pages. It only waits for
// earlier ones, so the first never waits. One that ends is not waited for. Not thread-safe.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, const DecodingStrategy& strategy);  // strategy: not owned

  // Error kInvalidArgument if the prompt is empty or fills the context. Call it before the strategy appends tokens to
  // the prompt. Callable from any thread, as check_size().
  void check_length(const Sequence& sequence) const;
  // Error kInvalidArgument if the sequence, which the strategy has started, could never run: it needs more pages than
  // the pool has, or steps with more tokens than max_tokens_per_step.
  void check_size(const Sequence& sequence) const;
  // Queues a sequence, which must outlive its release(). Errors as both checks, without effect.
  void add(Sequence& sequence);
  // Plans the next step within max_tokens_per_step: sequences that decode first, then prompt chunks. The oldest prompt
  // has a quarter of what decoding leaves, the rest goes to the prompts with the fewest tokens left.
  // kNever: sequences that lack pages wait (lacks_room), because their tokens in flight are not known.
  // `only`: ids of the sequences that may run; empty: all.
  enum class Preempts : uint8_t { kNever, kIfNeeded };
  std::vector<ScheduledStep> next(Preempts preempts = Preempts::kIfNeeded, std::span<const int64_t> only = {});
  // Returns true if a sequence waits for pages since the last call of next().
  bool lacks_room() const { return lacks_room_; }
  // Plans steps with at most so many rows from now on, and never more than an earlier call allowed. One may have more
  // if the first request of it needs them.
  void limit_rows(int32_t most) { most_rows_ = std::min(most_rows_, most); }
  // After next() has thrown: ids of the sequences it failed for. They must not run again; the others are unchanged.
  const std::vector<int64_t>& in_plan() const { return in_plan_; }
  // Returns the state copies to perform before the step runs, in this order.
  std::vector<StateCopy> take_state_copies() { return states_.take_copies(); }
  // Frees what a finished or aborted sequence holds, queued or running. kNo: the prefix cache does not keep what it
  // computed.
  void release(Sequence& sequence, PageTable::Keeps keeps = PageTable::Keeps::kYes);
  // Preempts a running sequence, no step of which is in flight. False, without effect, if it does not run or its
  // strategy would then decide other tokens.
  bool preempt(Sequence& sequence);

  size_t num_running() const { return running_.size(); }
  size_t num_waiting() const { return waiting_.size(); }
  bool any_waiting() const { return !waiting_.empty(); }
  bool any_held_back() const;  // one waits for what another one computes, or for pages
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const ReqToTokenPool& table() const { return table_; }
  int32_t free_pages() const { return pages_.num_available(); }  // with evictable pages of the prefix cache
  int32_t num_states() const { return config_.num_states; }
  int32_t free_states() const { return states_.num_available(); }  // with evictable states of the prefix cache
  int64_t num_preempted() const { return num_preempted_; }
  // Throws kInternal unless each page and state is exactly one of free, cached and leased.
  void audit() const;

 private:
  int32_t tokens_to_hold(const Sequence& sequence) const;
  bool admit(Sequence& sequence);
  void admit_waiting();  // in order of arrival, until one does not fit
  // Shares what is computed of a sequence that has not begun. Returns true if it can begin: nobody else computes text
  // of it.
  bool catch_up(Sequence& sequence);
  // Returns false if the sequence still waits.
  bool begin(Sequence& sequence);
  // Gives a sequence the pages of so many tokens, at the expense of younger ones if need be.
  bool make_room(Sequence& sequence, int32_t num_tokens);
  Sequence* youngest_behind(const Sequence& sequence);  // one that may be preempted; or null

  void plan(std::span<const int64_t> only);
  bool plan_one(Sequence& sequence, int32_t most_rows);
  void plan_prompts(std::vector<Sequence*>& prompts);
  int32_t chunk_of(const Sequence& sequence, int32_t rows) const;
  void drop(Sequence& sequence, PageTable::Keeps keeps);  // takes back what a running one holds

  SchedulerConfig config_;
  const DecodingStrategy& strategy_;
  ReqToTokenPool table_;
  PageTable pages_;
  StateTable states_;
  std::deque<Sequence*> waiting_;   // not owned
  std::vector<Sequence*> running_;  // not owned, in order of admission
  std::vector<Sequence*> by_row_;   // running ones by table row
  int64_t num_preempted_ = 0;
  int32_t most_rows_;

  // State of a call of next().
  Preempts preempts_ = Preempts::kIfNeeded;
  bool lacks_room_ = false;
  std::vector<ScheduledStep> planned_;
  int32_t budget_ = 0;         // rows left
  int32_t scored_budget_ = 0;  // rows left with log-probabilities of prompts
  std::vector<int64_t> in_plan_;
};

}  // namespace headrace
