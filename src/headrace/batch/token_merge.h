// Soft embeddings: inputs that blend candidate tokens and the mask token.
#pragma once
#include <cstdint>

#include "headrace/core/tensor.h"

namespace headrace {

// For tokens with mask[t] != 0: embedding[t] = sum_j probs[t, j] * E[ids[t, j]] + residual[t] * E[mask_token_id].
// kOfParts then rescales it to the sum of its terms' norms.
// Source: Diffulex, token merge of the DMax strategy.
struct TokenMerge {
  TensorView mask = {};      // uint8 [num_tokens]
  TensorView ids = {};       // int64 [num_tokens, k]
  TensorView probs = {};     // float32 [num_tokens, k]
  TensorView residual = {};  // float32 [num_tokens]
  int32_t mask_token_id = 0;
  enum class Length : uint8_t { kAsSummed, kOfParts } length = Length::kAsSummed;
};

}  // namespace headrace
