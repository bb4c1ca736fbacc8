// Confidence scores of a row's most likely token. Host and device share them, so that a threshold falls the same way on
// both.
#pragma once
#include <cmath>

#include "headrace/batch/key_span.h"

namespace headrace {

// Computes scores from token_confidence's statistics of a row. Exponentials are taken in double, so that math libraries
// that differ in the last bit agree on the float.
struct TokenScores {
  // Returns the probability of a token from its log-probability.
  HR_HOST_DEVICE static float confidence(float logprob) {
    return static_cast<float>(exp(static_cast<double>(logprob)));
  }
  // Returns the best minus the second-best probability.
  HR_HOST_DEVICE static float margin(float largest, float log_sum, float second) {
    const double ratio = exp(static_cast<double>(second) - static_cast<double>(largest));
    return static_cast<float>((1 - ratio) * exp(-static_cast<double>(log_sum)));
  }
};

}  // namespace headrace
