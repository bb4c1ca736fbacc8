// Inputs of tokens besides their own embeddings, which single diffusion models need.
#pragma once
#include <optional>
#include <vector>

#include "headrace/batch/self_conditioning.h"
#include "headrace/batch/token_merge.h"

namespace headrace {

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
