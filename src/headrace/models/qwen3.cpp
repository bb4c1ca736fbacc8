// Qwen3: RMS-normed q and k per head, no biases.
// Source: Qwen3 technical report.
#include "headrace/models/families.h"

namespace headrace {

ModelConfig qwen3_config(const JsonValue& root) { return qwen3_config_with(root, {.head_dim = 128}); }

ModelConfig qwen3_config_with(const JsonValue& root, const ClassDefaults& defaults) {
  ModelConfig c = common_config(root, defaults);
  c.attention.qk_norm = SelfAttentionConfig::QKNorm::kYes;
  if (text_config_of(root).bool_or("attention_bias", false)) c.attention.qkv_bias = c.attention.o_bias = HasBias::kYes;
  return c;
}

}  // namespace headrace
