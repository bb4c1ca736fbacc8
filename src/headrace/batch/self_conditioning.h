// Self-conditioning: a denoising step's second input, from the logits of the step before.
#pragma once
#include "headrace/core/tensor.h"

namespace headrace {

// Tokens with mask[t] != 0 get softmax(logits[i]) E as a second input, i counting the marked tokens in order. Others
// get none, such as a canvas before its first step. Source: Chen et al. 2022, self-conditioning; DiffusionGemma.
struct SelfConditioning {
  TensorView mask = {};    // uint8 [num_tokens]
  TensorView logits = {};  // float32 [marked tokens, vocab], divided by that step's temperature
};

}  // namespace headrace
