// Fast-dLLM-v2: Qwen2 with block attention, sub-blocks of 8 and next-token logits.
// Source: Fast-dLLM v2 (NVIDIA).
#include <numeric>

#include "headrace/models/families.h"

namespace headrace {

ModelConfig fast_dllm_v2_config(const JsonValue& root) {
  constexpr int32_t kSubBlock = 8;
  ModelConfig c = qwen2_config(root);
  const int32_t block = read_block_size(root, "bd_size", 32);
  c.diffusion = DiffusionInfo{.mask_token_id = read_mask_token_id(root, 151665, c.vocab),
                              .block_size = block,
                              .sub_block_size = std::gcd(block, kSubBlock),
                              .logits_of = DiffusionInfo::LogitsOf::kBefore};
  return c;
}

}  // namespace headrace
