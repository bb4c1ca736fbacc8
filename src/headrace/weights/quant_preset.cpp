#include "headrace/weights/quant_preset.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace headrace {
namespace {

constexpr std::array<std::string_view, 4> kPresetNames = {"q8_0", "q4_k_m", "q5_k_m", "q6_k"};  // order of QuantPreset

enum class WeightRole : uint8_t { kFloats, kEmbedding, kHead, kValues, kDown, kOther };

// Roles by the module that a name ends with. kValues and kDown are those that a mix stores with more bits in some
// layers.
struct ModuleRole {
  std::string_view module;
  WeightRole role;
};
constexpr std::array kModuleRoles = {
    ModuleRole{"embed_tokens", WeightRole::kEmbedding}, ModuleRole{"token_embd", WeightRole::kEmbedding},
    ModuleRole{"lm_head", WeightRole::kHead},           ModuleRole{"output", WeightRole::kHead},
    ModuleRole{"v_proj", WeightRole::kValues},          ModuleRole{"qkv_proj", WeightRole::kValues},
    ModuleRole{"in_proj_qkv", WeightRole::kValues},     ModuleRole{"in_proj_qkvz", WeightRole::kValues},
    ModuleRole{"attn_v", WeightRole::kValues},          ModuleRole{"attn_qkv", WeightRole::kValues},
    ModuleRole{"down_proj", WeightRole::kDown},         ModuleRole{"ffn_down", WeightRole::kDown},
    ModuleRole{"ffn_down_exps", WeightRole::kDown},     ModuleRole{"ffn_down_shexp", WeightRole::kDown},
    ModuleRole{"q_proj", WeightRole::kOther},           ModuleRole{"k_proj", WeightRole::kOther},
    ModuleRole{"o_proj", WeightRole::kOther},           ModuleRole{"gate_proj", WeightRole::kOther},
    ModuleRole{"up_proj", WeightRole::kOther},          ModuleRole{"gate_up_proj", WeightRole::kOther},
    ModuleRole{"in_proj_z", WeightRole::kOther},        ModuleRole{"out_proj", WeightRole::kOther},
    ModuleRole{"attn_q", WeightRole::kOther},           ModuleRole{"attn_k", WeightRole::kOther},
    ModuleRole{"attn_output", WeightRole::kOther},      ModuleRole{"attn_gate", WeightRole::kOther},
    ModuleRole{"ssm_out", WeightRole::kOther},          ModuleRole{"ffn_gate", WeightRole::kOther},
    ModuleRole{"ffn_up", WeightRole::kOther},           ModuleRole{"ffn_gate_exps", WeightRole::kOther},
    ModuleRole{"ffn_up_exps", WeightRole::kOther},      ModuleRole{"ffn_gate_up_exps", WeightRole::kOther},
    ModuleRole{"ffn_gate_shexp", WeightRole::kOther},   ModuleRole{"ffn_up_shexp", WeightRole::kOther},
};

WeightRole role_of(std::string_view name) {
  constexpr std::string_view kEnding = ".weight";
  if (name.ends_with(kEnding)) name.remove_suffix(kEnding.size());
  const size_t dot = name.rfind('.');
  const std::string_view module = dot == name.npos ? name : name.substr(dot + 1);
  const auto* const found = std::ranges::find(kModuleRoles, module, &ModuleRole::module);
  return found == kModuleRoles.end() ? WeightRole::kFloats : found->role;
}

// N of "blk.N." and "layers.N."; 0 for a weight of no layer.
int64_t layer_in(std::string_view name) {
  for (const std::string_view before : {std::string_view("blk."), std::string_view("layers.")}) {
    const size_t at = name.find(before);
    if (at == name.npos) continue;
    int64_t layer = 0;
    std::from_chars(name.data() + at + before.size(), name.data() + name.size(), layer);
    return layer;
  }
  return 0;
}

// The first and the last eighth of the layers, and each third one between them. Source: llama.cpp, llama-quant.cpp.
bool gets_more_bits(int64_t layer, int64_t num_layers) {
  const int64_t eighth = num_layers / 8;
  return layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
}

BlockFormat base_of(QuantPreset preset) {
  switch (preset) {
    case QuantPreset::kQ8_0: return BlockFormat::kQ8_0;
    case QuantPreset::kQ4_K_M: return BlockFormat::kQ4_K;
    case QuantPreset::kQ5_K_M: return BlockFormat::kQ5_K;
    case QuantPreset::kQ6_K: return BlockFormat::kQ6_K;
  }
  return BlockFormat::kQ8_0;
}

// For rows that a block of 256 does not divide.
BlockFormat small_block_for(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_K: return BlockFormat::kQ5_0;
    case BlockFormat::kQ5_K: return BlockFormat::kQ5_1;
    case BlockFormat::kQ6_K: return BlockFormat::kQ8_0;
    default: return format;
  }
}

}  // namespace

std::string_view name_of(QuantPreset preset) { return kPresetNames[static_cast<size_t>(preset)]; }

std::optional<QuantPreset> quant_preset_named(std::string_view name) {
  const auto* const found = std::ranges::find(kPresetNames, name);
  if (found == kPresetNames.end()) return std::nullopt;
  return static_cast<QuantPreset>(found - kPresetNames.begin());
}

std::optional<BlockFormat> block_format_for(std::string_view name, const Shape& shape, QuantPreset preset,
                                            const QuantModel& model) {
  const WeightRole role = role_of(name);
  if (role == WeightRole::kFloats || shape.rank() < 2) return std::nullopt;
  BlockFormat format = base_of(preset);
  const bool is_head =
      role == WeightRole::kHead || (role == WeightRole::kEmbedding && model.head == QuantModel::Head::kIsEmbedding);
  const bool is_mixed = role == WeightRole::kValues || role == WeightRole::kDown;
  if (preset != QuantPreset::kQ8_0 && (is_head || (is_mixed && gets_more_bits(layer_in(name), model.num_layers)))) {
    format = BlockFormat::kQ6_K;
  }
  const int64_t columns = shape[shape.rank() - 1];
  if (columns % layout_of(format).elements != 0) format = small_block_for(format);
  return columns % layout_of(format).elements == 0 ? std::optional(format) : std::nullopt;
}

}  // namespace headrace
