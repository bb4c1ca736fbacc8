#include "headrace/layers/gemma_attention.h"

namespace headrace {
namespace {

Linear gemma_projection(const WeightScope& scope, const char* name, const GemmaAttentionConfig& c, int32_t heads) {
  return Linear(scope, name, int64_t{heads} * c.head_dim, c.hidden);
}

Tensor ones(int64_t count) {
  Tensor out(DType::kF32, {count});
  for (int64_t i = 0; i < count; ++i) set_element(out, i, 1);
  return out;
}

}  // namespace

RadixAttentionConfig GemmaAttentionConfig::attention() const {
  return {.num_heads = num_heads,
          .head_dim = head_dim,
          .scaling = 1,
          .num_kv_heads = num_kv_heads,
          .layer_id = layer_id,
          .sliding_window_size = sliding_window};
}

GemmaAttention::GemmaAttention(const WeightScope& scope, const GemmaAttentionConfig& c, const RotaryEmbedding& rotary)
    : config_(c),
      q_proj_(gemma_projection(scope, "q_proj", c, c.num_heads)),
      k_proj_(gemma_projection(scope, "k_proj", c, c.num_kv_heads)),
      v_proj_(c.values == GemmaAttentionConfig::Values::kProjected
                  ? gemma_projection(scope, "v_proj", c, c.num_kv_heads)
                  : k_proj_),
      o_proj_(scope, "o_proj", c.hidden, int64_t{c.num_heads} * c.head_dim),
      q_norm_(scope, "q_norm", c.head_dim, c.eps, WeightForm::kPlain),
      k_norm_(scope, "k_norm", c.head_dim, c.eps, WeightForm::kPlain),
      v_weight_(copied_to(scope.runtime(), ones(c.head_dim))),
      v_norm_(v_weight_, c.eps),
      rotary_(&rotary),
      attention_(c.attention()) {}

Tensor GemmaAttention::forward(const LayerContext& context, const TensorView& x, const ForwardBatch& batch) const {
  const int64_t tokens = x.dim(0), dim = config_.head_dim;
  const Tensor queries = q_proj_(context, x), keys = k_proj_(context, x), values = v_proj_(context, x);
  const TensorView q = queries.view().reshape({tokens, config_.num_heads, dim});
  const TensorView k = keys.view().reshape({tokens, config_.num_kv_heads, dim});
  const TensorView v = values.view().reshape({tokens, config_.num_kv_heads, dim});
  q_norm_.forward(context, q, q);
  k_norm_.forward(context, k, k);
  v_norm_.forward(context, v, v);
  rotary_->forward(context, q, batch.positions);
  rotary_->forward(context, k, batch.positions);
  const Tensor out = context.make({tokens, config_.num_heads * dim});
  attention_.forward(q, k, v, batch, out);
  return o_proj_(context, out);
}

}  // namespace headrace
