// Llama 3: grouped-query attention, rotary embedding with the llama3 frequency scaling, no q and k norms.
// Source: The Llama 3 Herd of Models.
#include "headrace/models/families.h"

namespace headrace {

ModelConfig llama_config(const JsonValue& root) {
  ModelConfig c = common_config(
      root, {.intermediate = 11008, .vocab = 32000, .num_kv_heads = std::nullopt, .context_length = 2048});
  if (text_config_of(root).bool_or("attention_bias", false)) c.attention.qkv_bias = c.attention.o_bias = HasBias::kYes;
  HR_REQUIRE(!text_config_of(root).bool_or("mlp_bias", false), ErrorCode::kUnsupported, root.where(),
             " has mlp_bias, which is not built");
  return c;
}

}  // namespace headrace
