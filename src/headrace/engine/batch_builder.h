// Step plans to a ForwardBatch.
#pragma once
#include <span>
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/engine/scheduler.h"

namespace headrace {

// Owns the memory behind the batch's views; build() invalidates the batch before. Not thread-safe.
class BatchBuilder {
 public:
  // logits_rows are in the order of the steps, of each its sample rows, then its guides.
  const ForwardBatch& build(std::span<const ScheduledStep> steps, const ReqToTokenPool& table,
                            AttentionBackend* backend);

 private:
  void add(const ScheduledStep& step, const ReqToTokenPool& table);
  void add_merge(const StepPlan& any);
  void add_conditioning(std::span<const ScheduledStep> steps);
  void add_span(const ScheduledStep& step, const PlannedSpan& span, const ReqToTokenPool& table);

  std::vector<int32_t> ids_, positions_;
  std::vector<int64_t> write_slots_;
  std::vector<SoftRow> soft_;         // of all sequences
  std::vector<uint8_t> conditioned_;  // [tokens]
  Tensor conditioning_;               // of several sequences, one after the other
  struct Merge {                      // as TokenMerge has it
    std::vector<uint8_t> mask;
    std::vector<int64_t> ids;
    std::vector<float> probs, residual;
  } merge_;
  ForwardBatch batch_;
};

}  // namespace headrace
