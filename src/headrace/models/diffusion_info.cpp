#include "headrace/models/diffusion_info.h"

#include "headrace/models/families.h"

namespace headrace {

int32_t read_mask_token_id(const JsonValue& root, int32_t fallback, int64_t vocab) {
  const JsonValue* stated = text_config_of(root).find("mask_token_id");
  return stated != nullptr ? static_cast<int32_t>(stated->as_int(0, vocab - 1)) : fallback;
}

int32_t read_block_size(const JsonValue& root, const char* key, int32_t fallback) {
  return static_cast<int32_t>(text_config_of(root).int_or(key, fallback, 1, 1 << 16));
}

}  // namespace headrace
