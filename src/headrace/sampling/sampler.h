// Logits to a token.
#pragma once
#include <cstdint>
#include <span>

#include "headrace/request/sampling_params.h"

namespace headrace {

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;     // natural log of its probability before temperature and filters
  float confidence = 0;  // that probability
  float margin = 0;      // best minus second-best probability
  float entropy = 0;     // of that distribution, in nats
};

// The repetition penalty, then temperature, top-k, top-p, min-p. Ties go to the lowest id. The random number depends
// on params.seed and `position` alone, so a result does not depend on what else runs. Ids from `vocab` on (padding rows
// of the model's head) are excluded before the softmax. `logits` is changed. Error kInternal for a logit that is NaN.
SampledToken sample(std::span<float> logits, int32_t vocab, const SamplingParams& params,
                    std::span<const int32_t> history, int64_t position);

}  // namespace headrace
