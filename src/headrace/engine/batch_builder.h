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
  // logits_rows are in the order of the steps and their sample rows.
  const ForwardBatch& build(std::span<const ScheduledStep> steps, const ReqToTokenPool& table,
                            AttentionBackend* backend);

 private:
  void add(const ScheduledStep& step, const ReqToTokenPool& table);
  void add_span(const Sequence& sequence, const PlannedSpan& span, const ReqToTokenPool& table);

  std::vector<int32_t> ids_, positions_;
  std::vector<int64_t> write_slots_;
  ForwardBatch batch_;
};

}  // namespace headrace
