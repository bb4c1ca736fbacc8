// What a denoising step knows of the one before it: the logits that it gave for the same rows.
#pragma once
#include "headrace/core/tensor.h"

namespace headrace {

// Rows with mask[t] != 0 take softmax(logits[i]) E as a second input, i counting those rows in their order. Rows
// without it take none: a canvas before its first step. Source: Chen et al. 2022, self-conditioning; DiffusionGemma.
struct SelfConditioning {
  TensorView mask = {};    // uint8 [num_tokens]
  TensorView logits = {};  // float32 [rows that mask marks, vocab]: divided by that step's temperature
};

}  // namespace headrace
