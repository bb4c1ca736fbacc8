// What config.json says of a causal decoder, whatever its family.
#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headrace/core/log.h"
#include "headrace/layers/gated_delta_net.h"
#include "headrace/layers/moe_layer.h"
#include "headrace/layers/rotary_embedding.h"
#include "headrace/layers/self_attention.h"
#include "headrace/models/diffusion_info.h"
#include "headrace/weights/config_file.h"
#include "headrace/weights/name_rules.h"

namespace headrace {

// The largest width or vocabulary that a config.json may state.
inline constexpr int64_t kMaxModelDim = int64_t{1} << 24;

enum class LayerType : uint8_t { kFullAttention, kLinearAttention };

struct ModelConfig {
  std::string architecture;
  int64_t hidden = 0, intermediate = 0, vocab = 0;
  int32_t num_layers = 0, context_length = 0;
  bool tied_head = false;
  float eps = 1e-6f;
  WeightForm norm_form = WeightForm::kPlain;
  std::vector<LayerType> layer_types;  // [num_layers]
  std::vector<bool> moe_layers;        // [num_layers]; empty: none
  SelfAttentionConfig attention;       // layer_id is set per layer
  RotaryConfig rotary;
  GatedDeltaNetConfig gdn;  // ids are set per layer
  MoEConfig moe;
  std::vector<int32_t> eos_ids;            // of the family, beside those that the files state
  std::span<const NameRule> names;         // not owned: the family's table; empty: the common names
  std::optional<DiffusionInfo> diffusion;  // absent: decoded token by token
  std::optional<DType> stored_dtype;       // what config.json states
};

// What a family's configuration class takes for a field that config.json leaves out. transformers leaves such fields
// out of a text_config that it saves.
struct ClassDefaults {
  int64_t hidden = 4096, intermediate = 22016, vocab = 151936;
  int32_t num_layers = 32, num_heads = 32;
  std::optional<int32_t> num_kv_heads = 32;  // absent: num_attention_heads
  std::optional<int32_t> head_dim;           // absent: hidden_size / num_attention_heads
  int32_t context_length = 32768;
  double eps = 1e-6, rope_theta = 10000;  // rope_theta 0: config.json must state it
  // The share of each head that rotates. Absent: the class rotates whole heads and reads no partial_rotary_factor.
  std::optional<double> partial_rotary;
};

// As ClassDefaults, of the fields of experts.
struct ExpertDefaults {
  int64_t intermediate = 512, shared_intermediate = 512, num_experts = 512, experts_per_token = 10;
};

// The fields that all families share, from the text part of `root` (text_config, or root itself). Every number is
// range-checked. Error kModelFile names the key.
ModelConfig common_config(const JsonValue& root, const ClassDefaults& defaults);
// Whether the parts fit together, once the family has filled them in. Error kModelFile or kUnsupported.
void check(const ModelConfig& config);
const JsonValue& text_config_of(const JsonValue& root);
// What rope_parameters or rope_scaling states goes over what `config` has; a type that it does not state is "default".
void read_rope(const JsonValue& rope, RotaryConfig& config);
// The dtype of the weights where it is stated. Error kModelFile for another name than the three float dtypes.
std::optional<DType> stored_dtype_of(const JsonValue& root);

// eos ids of config.json and generation_config.json together with the family's own, `ids`. What is no id below `vocab`
// could end nothing: it is left out with a warning to `log`.
std::vector<int32_t> eos_ids_of(const JsonValue& root, const std::filesystem::path& directory, int64_t vocab,
                                std::vector<int32_t> ids = {}, const LogCallback& log = {});

}  // namespace headrace
