// Which sequences run in the next step, and the pool slots that they hold.
#pragma once
#include <deque>
#include <vector>

#include "headrace/engine/kept_pages.h"
#include "headrace/pool/req_to_token_pool.h"
#include "headrace/pool/slot_allocator.h"
#include "headrace/strategy/decoding_strategy.h"

namespace headrace {

struct SchedulerConfig {
  int32_t num_pages = 0, page_size = 64;
  int32_t max_requests = 1;
  int32_t num_states = 0;  // recurrent state slots; 0 for a model without them
  int32_t max_context_len = 0;
  int32_t max_tokens_per_step = 512;
  // kYes: pages of requests that are over stay filled until they are needed, and a request whose prompt begins with the
  // same text goes on behind them. Not with recurrent states, and where the strategy allows it.
  enum class KeepText : uint8_t { kNo, kYes } keep_text = KeepText::kNo;
};

struct ScheduledStep {
  Sequence* sequence = nullptr;  // not owned
  StepPlan plan;
};

// A sequence gets pages for its whole prompt and output when it is admitted, so a running one never lacks memory;
// those that do not fit yet wait in order of arrival. Not thread-safe.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, const DecodingStrategy& strategy);  // strategy: not owned

  // Queues a sequence, which outlives its release. Error kInvalidArgument, and nothing is queued, for one that could
  // never run: an empty prompt, one that fills the context, more pages than the pool has, or steps of more rows than
  // the engine runs.
  void add(Sequence& sequence);
  // The next step: newest tokens of running sequences first, then prompt chunks, within max_tokens_per_step.
  std::vector<ScheduledStep> next();
  // Frees everything that a finished or aborted sequence holds, queued or running.
  void release(Sequence& sequence);

  bool any_waiting() const { return !waiting_.empty(); }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  const ReqToTokenPool& table() const { return table_; }
  int32_t free_pages() const { return pages_.available_size() + kept_.num_pages(); }  // those with kept text too
  int32_t free_states() const { return states_.available_size(); }

 private:
  int32_t pages_needed(const Sequence& sequence) const;
  bool admit(Sequence& sequence);
  bool keeps_text() const;
  // Pages for the sequence: of a kept text that its prompt begins with, which it is then cached up to, and new ones.
  void give_pages(Sequence& sequence);
  // Keeps the pages of what is cached in whole, and frees the others.
  void take_pages_back(Sequence& sequence);

  SchedulerConfig config_;
  const DecodingStrategy& strategy_;
  SlotAllocator pages_, states_;
  KeptPages kept_;
  ReqToTokenPool table_;
  std::deque<Sequence*> waiting_;   // not owned
  std::vector<Sequence*> running_;  // not owned
};

}  // namespace headrace
