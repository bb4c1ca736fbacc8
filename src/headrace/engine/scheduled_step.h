// One sequence's part of a step.
#pragma once
#include <optional>
#include <vector>

#include "headrace/decoding/decoding_strategy.h"
#include "headrace/request/sequence.h"

namespace headrace {

struct ScheduledStep {
  Sequence* sequence = nullptr;  // not owned
  StepPlan plan;
  // Recurrent models: the state slot that the step reads, if it differs from the one it writes.
  std::optional<int32_t> state_from = {};
  std::vector<StateMark> left = {};  // state snapshots taken in the step, ascending

  // Returns true if the device can sample this step: no guidance, no candidates to keep, scores of the model's
  // distribution.
  bool device_reads() const {
    return sequence->params.decoding.cfg_scale == 0 && plan.num_candidates == 0 &&
           sequence->scores_of == ScoresOf::kModel;
  }
};

// Copy of a recurrent state between slots.
struct StateCopy {
  int32_t from = 0, to = 0;
  bool operator==(const StateCopy&) const = default;
};

}  // namespace headrace
