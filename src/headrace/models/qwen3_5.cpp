// Qwen3.5, dense and MoE: Qwen3-Next with plain projections; text positions make its multi-section RoPE plain.
// Released files nest everything in text_config and prefix tensors with model.language_model.
#include "headrace/models/families.h"

namespace headrace {

ModelConfig qwen3_5_config(const JsonValue& root) {
  ModelConfig c = common_config(root);
  const JsonValue& text = text_config_of(root);
  read_gdn(text, c);
  HR_REQUIRE(text.bool_or("attn_output_gate", true), ErrorCode::kUnsupported, text.where(),
             " has attn_output_gate false, which is not built");
  const std::string gate = text.string_or("output_gate_type", "swish");
  HR_REQUIRE(gate == "swish" || gate == "silu", ErrorCode::kUnsupported, text.where(), " has output_gate_type '", gate,
             "'; built are: swish, silu");
  if (text.find("num_experts_per_tok") != nullptr) read_moe(text, c);  // always renormalised
  return c;
}

}  // namespace headrace
