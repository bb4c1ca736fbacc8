// Repetition penalty of one logit. Host and device share it, so that drawn tokens do not depend on which of them
// applied it.
#pragma once
#include "headrace/batch/key_span.h"

namespace headrace {

// Returns the logit of a token that occurred, penalised. Source: Keskar et al. 2019 (CTRL), as in transformers.
HR_HOST_DEVICE inline float penalized(float logit, float penalty) {
  return logit > 0 ? logit / penalty : logit * penalty;
}

// Returns the logit before penalized(): its inverse.
inline float unpenalized(float logit, float penalty) { return logit > 0 ? logit * penalty : logit / penalty; }

}  // namespace headrace
