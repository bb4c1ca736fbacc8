// Builds one ForwardBatch from the step plans of all scheduled sequences.
#pragma once
#include <span>
#include <vector>

#include "headrace/batch/forward_batch.h"
#include "headrace/engine/scheduler.h"

namespace headrace {

// Owns the memory behind the batch's views; each build() invalidates the batch returned before. Not thread-safe.
class BatchBuilder {
 public:
  // Builds the batch of `steps`, in their order. Its logits_rows follow that order: each step's scored rows, then its
  // sample rows, then its guide rows. `table` gives pages and state slots; `backend` is not owned.
  const ForwardBatch& build(std::span<const ScheduledStep> steps, const ReqToTokenPool& table,
                            AttentionBackend* backend);

 private:
  void clear();
  void add(const ScheduledStep& step, const ReqToTokenPool& table);
  void add_merge(const StepPlan& any);
  void add_conditioning(std::span<const ScheduledStep> steps);
  void add_span(const ScheduledStep& step, const PlannedSpan& span, const ReqToTokenPool& table);

  std::vector<int32_t> ids_, positions_;
  std::vector<int64_t> write_slots_;
  std::vector<SoftRow> soft_;         // soft embeddings of all sequences
  std::vector<uint8_t> conditioned_;  // [tokens]
  Tensor conditioning_;               // of several sequences, concatenated
  struct Merge {                      // the arrays of TokenMerge
    std::vector<uint8_t> mask;
    std::vector<int64_t> ids;
    std::vector<float> probs, residual;
  } merge_;
  ForwardBatch batch_;
};

}  // namespace headrace
