// Qwen3-Next: three Gated DeltaNet layers per gated full-attention layer, routed experts with a shared one, norm
// weights of 1 + w.
// Source: Qwen3-Next; Yang et al. 2024.
#include "headrace/models/families.h"

namespace headrace {

void read_gdn(const JsonValue& text, ModelConfig& c) {
  const auto size = [&text](const char* key, int64_t fallback) {
    return static_cast<int32_t>(text.int_or(key, fallback, 1, 1 << 16));
  };
  c.gdn = {.hidden = c.hidden,
           .num_k_heads = size("linear_num_key_heads", 16),
           .num_v_heads = size("linear_num_value_heads", 32),
           .head_k_dim = size("linear_key_head_dim", 128),
           .head_v_dim = size("linear_value_head_dim", 128),
           .conv_kernel = size("linear_conv_kernel_dim", 4),
           .eps = c.eps};
  HR_REQUIRE(c.gdn.num_v_heads % c.gdn.num_k_heads == 0, ErrorCode::kModelFile, text.where(), " has ",
             c.gdn.num_v_heads, " linear value heads, expected a multiple of ", c.gdn.num_k_heads, " key heads");
  if (text.find("layer_types") == nullptr) {
    const int64_t interval = text.int_or("full_attention_interval", 4, 1);
    for (int64_t i = 0; i < c.num_layers; ++i) {
      const bool full = (i + 1) % interval == 0;
      c.layer_types[static_cast<size_t>(i)] = full ? LayerType::kFullAttention : LayerType::kLinearAttention;
    }
  }
  c.norm_form = c.attention.norm_form = WeightForm::kPlusOne;
  c.attention.qk_norm = SelfAttentionConfig::QKNorm::kYes;
  c.attention.output_gate = SelfAttentionConfig::OutputGate::kYes;
  HR_REQUIRE(!text.bool_or("attention_bias", false), ErrorCode::kUnsupported, text.where(),
             " has attention_bias, which is not built for this family");
}

ModelConfig qwen3_next_config(const JsonValue& root) {
  ModelConfig c = common_config(root, {.hidden = 2048,
                                       .intermediate = 5632,
                                       .num_layers = 48,
                                       .num_heads = 16,
                                       .num_kv_heads = 2,
                                       .head_dim = 256,
                                       .partial_rotary = 0.25});
  const JsonValue& text = text_config_of(root);
  read_gdn(text, c);
  read_moe(text, {}, c);
  using Layout = GatedDeltaNetConfig::Layout;  // a GGUF file has separate projections
  const bool separate = text.string_or("linear_projections", "grouped") == "separate";
  c.gdn.layout = separate ? Layout::kSeparate : Layout::kGrouped;
  const bool renormalise = text.bool_or("norm_topk_prob", true);
  c.moe.router.norm_topk_prob =
      renormalise ? ExpertRouterConfig::Renormalise::kYes : ExpertRouterConfig::Renormalise::kNo;
  return c;
}

}  // namespace headrace
