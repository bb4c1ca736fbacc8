// SDAR (also TraDo), dense and MoE: Qwen3 and Qwen3-MoE that see whole blocks.
// Source: SDAR technical report. Released config.json copies differ in whether they state block_size and mask_token_id.
#include "headrace/models/families.h"

namespace headrace {
namespace {

DiffusionInfo sdar_info(const JsonValue& root, const ModelConfig& c) {
  DiffusionInfo info{.mask_token_id = read_mask_token_id(root, 151669, c.vocab), .threshold = 0.85f};
  info.block_size = info.sub_block_size = read_block_size(root, "block_size", 4);
  return info;
}

}  // namespace

ModelConfig sdar_config(const JsonValue& root) {
  ModelConfig c = qwen3_config(root);
  c.diffusion = sdar_info(root, c);
  return c;
}

ModelConfig sdar_moe_config(const JsonValue& root) {
  ModelConfig c = qwen3_moe_config(root);
  c.diffusion = sdar_info(root, c);
  return c;
}

}  // namespace headrace
