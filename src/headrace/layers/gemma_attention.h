// Self-attention of Gemma 4's decoder: q, k and v norms, unscaled scores, and values optionally from the key
// projection.
#pragma once
#include <optional>

#include "headrace/attention/radix_attention.h"
#include "headrace/layers/linear.h"
#include "headrace/layers/rms_norm.h"
#include "headrace/layers/rotary_embedding.h"

namespace headrace {

struct GemmaAttentionConfig {
  int64_t hidden = 0;
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0, layer_id = 0;
  float eps = 1e-6f;
  enum class Values : uint8_t {
    kProjected,  // v_proj
    kFromKeys,   // the output of k_proj, before norm and rotation
  } values = Values::kProjected;
  std::optional<int32_t> sliding_window;

  RadixAttentionConfig attention() const;
};

// Callable from one thread at a time (its backend's).
class GemmaAttention {
 public:
  // `rotary` is not owned and outlives the layer.
  GemmaAttention(const WeightScope& scope, const GemmaAttentionConfig& config, const RotaryEmbedding& rotary);

  // x [tokens, hidden] -> [tokens, hidden]
  Tensor forward(const LayerContext& context, const TensorView& x, const ForwardBatch& batch) const;

 private:
  GemmaAttentionConfig config_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;  // v_proj_ is k_proj_ when values come from keys
  RMSNorm q_norm_, k_norm_;
  Tensor v_weight_;  // ones: the norm of v has no weight
  RMSNorm v_norm_;   // refers to v_weight_
  const RotaryEmbedding* rotary_;
  RadixAttention attention_;
};

}  // namespace headrace
