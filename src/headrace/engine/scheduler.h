// Which sequences run in the next step, and the pool slots that they hold.
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
  std::string context_name = "the context (max_model_len)";  // as errors call what sets it
  int32_t max_tokens_per_step = 512;
  // kYes: a request whose prompt begins with the same text as that of a running one, or of one that is over and whose
  // pages are still filled, goes on behind it. Where the strategy allows it; with recurrent states where one was left,
  // for which there is room in what num_states has beyond max_requests.
  enum class KeepText : uint8_t { kNo, kYes } keep_text = KeepText::kNo;
};

// A sequence gets pages for its whole prompt and output when it is admitted, so a running one never lacks memory;
// those that do not fit yet wait in order of arrival. One whose prompt begins as that of a sequence which was admitted
// before it, and which has not computed that part yet, is held back until those pages are stored, and shares them:
// since only earlier ones are waited for, the first never waits, and whoever is over is not waited for any more. Not
// thread-safe.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, const DecodingStrategy& strategy);  // strategy: not owned

  // Error kInvalidArgument for a prompt that is empty or fills the context. add() checks the same. Call it before a
  // strategy lays out tokens behind the prompt.
  void check_length(const Sequence& sequence) const;
  // Queues a sequence, which outlives its release. Error kInvalidArgument, and nothing is queued, for one that could
  // never run: an empty prompt, one that fills the context, more pages than the pool has, or steps of more rows than
  // the engine runs.
  void add(Sequence& sequence);
  // The next step: newest tokens of running sequences first, then prompt chunks, within max_tokens_per_step. kNobody:
  // of those that run already.
  enum class Admits : uint8_t { kWhoFits, kNobody };
  std::vector<ScheduledStep> next(Admits admits = Admits::kWhoFits);
  // When next() has thrown: ids of those whom it was about, who may run no more. The others are as they were.
  const std::vector<int64_t>& in_plan() const { return in_plan_; }
  // What the step that next() returned reads besides: to be copied before it runs, in this order.
  std::vector<StateCopy> take_state_copies() { return states_.take_copies(); }
  // Frees everything that a finished or aborted sequence holds, queued or running.
  void release(Sequence& sequence);

  size_t num_running() const { return running_.size(); }
  bool any_waiting() const { return !waiting_.empty(); }
  bool any_held_back() const;  // by a sequence that computes what they begin with
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const ReqToTokenPool& table() const { return table_; }
  int32_t free_pages() const { return pages_.num_available(); }    // those with kept text too
  int32_t free_states() const { return states_.num_available(); }  // kept ones too

 private:
  struct Running {
    Sequence* sequence = nullptr;     // not owned
    const Sequence* ahead = nullptr;  // who stores the first common_pages of its pages; null: it runs by itself
    int32_t common_pages = 0;
  };

  int32_t pages_needed(const Sequence& sequence) const;
  bool admit(Sequence& sequence);
  void admit_waiting();  // who fits
  // The sequence before `one` that will have stored the most of what it begins with, if that is more than it has.
  void follow(Running& one) const;
  // Shares what is stored by now with one that is held back.
  void catch_up(Running& one);
  // What fits of these in a step, in this order; changes none of them.
  std::vector<ScheduledStep> plan(const std::vector<Sequence*>& order);
  // Rows that the sequence may run before it stops where a state is to be copied.
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
