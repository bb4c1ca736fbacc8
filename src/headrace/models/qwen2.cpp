// Qwen2 and Qwen2.5: Llama with biases on q, k and v.
// Source: Qwen2 technical report.
#include "headrace/models/families.h"

namespace headrace {

ModelConfig qwen2_config(const JsonValue& root) {
  ModelConfig c = common_config(root, {});
  c.attention.qkv_bias = HasBias::kYes;
  return c;
}

}  // namespace headrace
