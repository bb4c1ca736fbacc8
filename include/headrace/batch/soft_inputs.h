// Inputs of tokens besides their own embeddings, which single diffusion models need.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "headrace/core/tensor.h"

namespace headrace {

// Self-conditioning: a denoising step's second input, from the logits of the step before.
// Tokens with mask[t] != 0 get softmax(logits[i]) E as a second input, i counting the marked tokens in order. Others
// get none, such as a canvas before its first step. Source: Chen et al. 2022, self-conditioning; DiffusionGemma.
struct SelfConditioning {
  TensorView mask = {};    // uint8 [num_tokens]
  TensorView logits = {};  // float32 [marked tokens, vocab], divided by that step's temperature
};

// Soft embeddings: inputs that blend candidate tokens and the mask token.
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

// Views refer to memory of the engine (or of a test) that outlives the forward pass.
struct SoftInputs {
  std::optional<TokenMerge> token_merge = {};              // soft embeddings (dmax)
  std::optional<SelfConditioning> self_conditioning = {};  // canvas rows (DiffusionGemma); other models refuse it
  // Replaces self_conditioning's logits in a batch for a device: one tensor per request, concatenated, each on the host
  // or on the device.
  std::vector<TensorView> conditioning = {};
  const SoftInputs* on_device = nullptr;  // not owned: the same arrays on the device; null on a CPU

  // Returns the number of tokens with self-conditioning.
  int64_t num_conditioned() const {
    if (!self_conditioning) return 0;
    int64_t rows = conditioning.empty() ? self_conditioning->logits.dim(0) : 0;
    for (const TensorView& part : conditioning) rows += part.dim(0);
    return rows;
  }
};

}  // namespace headrace
