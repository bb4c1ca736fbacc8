// The repetition penalty of one logit. Host and device share it: drawn tokens must not depend on who applied it.
#pragma once
#include "headrace/batch/key_span.h"

namespace headrace {

// Of a token that occurred. Source: Keskar et al. 2019 (CTRL), as transformers has it.
HR_HOST_DEVICE inline float penalized(float logit, float penalty) {
  return logit > 0 ? logit / penalty : logit * penalty;
}

// What penalized() was given.
inline float unpenalized(float logit, float penalty) { return logit > 0 ? logit * penalty : logit / penalty; }

}  // namespace headrace
