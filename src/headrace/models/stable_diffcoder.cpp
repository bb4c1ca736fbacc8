// Stable-DiffCoder: Seed-Coder's Llama with block attention, blocks of 4. Its config.json says model_type llama.
// Source: Stable-DiffCoder (ByteDance Seed).
#include "headrace/models/families.h"

namespace headrace {

ModelConfig stable_diffcoder_config(const JsonValue& root) {
  ModelConfig c = llama_config(root);
  const int32_t block = read_block_size(root, "block_size", 4);
  c.diffusion = DiffusionInfo{.mask_token_id = read_mask_token_id(root, 5, c.vocab),
                              .block_size = block,
                              .sub_block_size = block,
                              .threshold = 0.95f,
                              .acceptance = DiffusionInfo::Acceptance::kAtLeast,
                              .loop = DiffusionInfo::Loop::kEven,
                              .progress = DiffusionInfo::Progress::kAlways};
  return c;
}

}  // namespace headrace
