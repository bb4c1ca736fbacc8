// Logits to a token.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "headrace/request/sampled_token.h"
#include "headrace/request/sampling_params.h"

namespace headrace {

// Which of a model's rows is read, and for what.
struct SampleSpot {
  int32_t vocab = 0;     // ids from here on (padding rows of the model's head) are excluded
  int64_t position = 0;  // in the request
  int32_t step = 0;      // passes that have looked at this position before
  std::optional<int32_t> excluded_id;  // the mask token
};

// The repetition penalty, then temperature, top-k, top-p, min-p. Ties go to the lowest id. The random number depends on
// params.seed, spot.position and spot.step alone, so a result does not depend on what else runs. What `spot` excludes is
// excluded before the softmax. `logits` is changed. Error kInternal for a logit that is NaN.
SampledToken sample(std::span<float> logits, const SamplingParams& params, std::span<const int32_t> history,
                    const SampleSpot& spot);

}  // namespace headrace
