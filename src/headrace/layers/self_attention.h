// Self-attention of a decoder layer: projections, optional q and k norms, rotary embedding, optional output gate.
#pragma once
#include <optional>

#include "headrace/attention/radix_attention.h"
#include "headrace/layers/linear.h"
#include "headrace/layers/rms_norm.h"
#include "headrace/layers/rotary_embedding.h"

namespace headrace {

struct SelfAttentionConfig {
  int64_t hidden = 0;
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0, layer_id = 0;
  float eps = 1e-6f;
  WeightForm norm_form = WeightForm::kPlain;
  HasBias qkv_bias = HasBias::kNo, o_bias = HasBias::kNo;
  enum class QKNorm : uint8_t { kNo, kYes } qk_norm = QKNorm::kNo;
  enum class OutputGate : uint8_t { kNo, kYes } output_gate = OutputGate::kNo;  // q_proj gives [query | gate] per head
  enum class Projections : uint8_t {
    kSeparate,  // q_proj, k_proj, v_proj
    kFused,     // qkv_proj: rows of all query heads, then key heads, then value heads
  } projections = Projections::kSeparate;
  std::optional<int32_t> sliding_window;

  int64_t q_rows() const { return int64_t{num_heads} * head_dim * (output_gate == OutputGate::kYes ? 2 : 1); }
  int64_t kv_rows() const { return int64_t{num_kv_heads} * head_dim; }
  RadixAttentionConfig attention() const;
};

// Source: Qwen3 technical report; gate: Qwen3-Next. Callable from one thread at a time (its backend's).
class SelfAttention {
 public:
  // `rotary` is not owned and outlives the layer.
  SelfAttention(const WeightScope& scope, const SelfAttentionConfig& config, const RotaryEmbedding& rotary);

  // x += attention(norm(x)), x [tokens, hidden]. The last GEMM may be pending (add_gemm).
  void add_to(const LayerContext& context, const RMSNorm& norm, const TensorView& x, const ForwardBatch& batch) const;
  // Only stores the keys and values, for tokens without logits in the last layer.
  void store(const LayerContext& context, const RMSNorm& norm, const TensorView& x, const ForwardBatch& batch) const;

 private:
  NormRotaryArgs norm_rotary(const TensorView& positions) const;  // arguments for the call's queries and keys

  SelfAttentionConfig config_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  std::optional<RMSNorm> q_norm_, k_norm_;
  const RotaryEmbedding* rotary_;
  RadixAttention attention_;
};

}  // namespace headrace
