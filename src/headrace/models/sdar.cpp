// SDAR (also TraDo), dense and MoE: Qwen3 and Qwen3-MoE with block attention.
// Source: SDAR technical report. Not all released config.json files state block_size and mask_token_id.
#include <algorithm>
#include <charconv>

#include "headrace/core/error.h"
#include "headrace/models/families.h"

namespace headrace {
namespace {

DiffusionInfo sdar_info(const JsonValue& root, const ModelConfig& c) {
  DiffusionInfo info{.mask_token_id = read_mask_token_id(root, 151669, c.vocab), .threshold = 0.85f};
  info.block_size = info.sub_block_size = read_block_size(root, "block_size", 4);
  return info;
}

// Official models without a block size in their names have the default, 4 (README of JetAstra/SDAR, 2025-09-09).
constexpr std::string_view kBlocksOfFour[] = {"SDAR-1.7B-Chat", "SDAR-4B-Chat", "SDAR-8B-Chat", "SDAR-30B-A3B-Chat",
                                              "SDAR-30B-A3B-Sci"};

// Removes the prefix "models--owner--" of Hugging Face's cache.
std::string_view without_owner(std::string_view name) {
  const size_t at = name.rfind("--");
  return name.starts_with("models--") ? name.substr(at + 2) : name;
}

}  // namespace

std::optional<int32_t> block_size_in_name(std::string_view name) {
  const size_t at = name.rfind("-b");
  if (at == name.npos) return std::nullopt;
  int32_t size = 0;
  const char *begin = name.data() + at + 2, *end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, size);
  const bool whole = error == std::errc() && last == end && *begin != '-';
  return whole && size >= 1 && size <= 1 << 16 ? std::optional(size) : std::nullopt;
}

std::optional<std::string> read_sdar_name(const JsonValue& root, std::string_view name, ModelConfig& config) {
  if (text_config_of(root).find("block_size") != nullptr) return std::nullopt;
  DiffusionInfo& info = *config.diffusion;
  if (const auto size = block_size_in_name(name)) {
    info.block_size = info.sub_block_size = *size;
    return std::nullopt;
  }
  if (std::ranges::find(kBlocksOfFour, without_owner(name)) != std::end(kBlocksOfFour)) return std::nullopt;
  return str("config.json states no block_size, nor does the name '", name, "' end in one (-b16): it is taken to be ",
             info.block_size, "; --block-size states another");
}

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
