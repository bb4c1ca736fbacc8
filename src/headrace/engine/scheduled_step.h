// What a sequence does in a step.
#pragma once
#include <optional>
#include <vector>

#include "headrace/decoding/decoding_strategy.h"
#include "headrace/request/sequence.h"

namespace headrace {

struct ScheduledStep {
  Sequence* sequence = nullptr;  // not owned
  StepPlan plan;
  // Of recurrent states: the slot that the step reads, where it is another one than it writes.
  std::optional<int32_t> state_from = {};
  std::vector<StateMark> left = {};  // states that it leaves on its way, ascending

  // Whether a device can read its logits: nothing changes them before that the host alone does, and it says of them all
  // that is asked.
  bool device_reads() const {
    return !sequence->params.changes_logits() && plan.num_candidates == 0 && sequence->scores_of == ScoresOf::kModel;
  }
};

// Of recurrent states, by slot.
struct StateCopy {
  int32_t from = 0, to = 0;
  bool operator==(const StateCopy&) const = default;
};

}  // namespace headrace
