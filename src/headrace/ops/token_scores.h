// How sure a model is of a row's most likely token. Host and device share it: a threshold must fall the same way on
// both.
#pragma once
#include <cmath>

#include "headrace/batch/key_span.h"

namespace headrace {

// From token_confidence's statistics of a row. The exponentials are taken in double, so that libraries that differ in
// the last bit of one agree on the float.
struct TokenScores {
  // Probability of a token whose logarithm is `logprob`.
  HR_HOST_DEVICE static float confidence(float logprob) {
    return static_cast<float>(exp(static_cast<double>(logprob)));
  }
  // Best minus second-best probability.
  HR_HOST_DEVICE static float margin(float largest, float log_sum, float second) {
    const double ratio = exp(static_cast<double>(second) - static_cast<double>(largest));
    return static_cast<float>((1 - ratio) * exp(-static_cast<double>(log_sum)));
  }
};

}  // namespace headrace
