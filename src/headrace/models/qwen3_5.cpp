// Qwen3.5, dense and MoE: Qwen3-Next with separate projections. For text, its multi-section RoPE equals plain RoPE.
// Released files nest everything in text_config and prefix tensors with model.language_model.
#include "headrace/core/printable.h"
#include "headrace/models/families.h"

namespace headrace {

namespace {

ModelConfig hybrid_config(const JsonValue& root, const ClassDefaults& defaults) {
  ModelConfig c = common_config(root, defaults);
  const JsonValue& text = text_config_of(root);
  read_gdn(text, c);
  HR_REQUIRE(text.bool_or("attn_output_gate", true), ErrorCode::kUnsupported, text.where(),
             " has attn_output_gate false, which is not built");
  const std::string gate = text.string_or("output_gate_type", "swish");
  HR_REQUIRE(gate == "swish" || gate == "silu", ErrorCode::kUnsupported, text.where(), " has output_gate_type '",
             printable(gate), "'; built are: swish, silu");
  return c;
}

}  // namespace

ModelConfig qwen3_5_config(const JsonValue& root) {
  return hybrid_config(root, {.intermediate = 12288,
                              .vocab = 248320,
                              .num_heads = 16,
                              .num_kv_heads = 4,
                              .head_dim = 256,
                              .partial_rotary = 0.25});
}

ModelConfig qwen3_5_moe_config(const JsonValue& root) {
  ModelConfig c = hybrid_config(root, {.hidden = 2048,
                                       .intermediate = 0,
                                       .vocab = 248320,
                                       .num_layers = 40,
                                       .num_heads = 16,
                                       .num_kv_heads = 2,
                                       .head_dim = 256,
                                       .partial_rotary = 0.25});
  read_moe(text_config_of(root), {.num_experts = 256, .experts_per_token = 8}, c);  // always renormalised
  return c;
}

}  // namespace headrace
