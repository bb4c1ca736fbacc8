// Configuration of a causal decoder of any family, from config.json.
#pragma once
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
#include "headrace/weights/model_description.h"
#include "headrace/weights/name_rules.h"
#include "headrace/weights/quant_preset.h"

namespace headrace {

// The largest hidden size or vocabulary that a config.json may state.
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
  SelfAttentionConfig attention;       // its layer_id is set per layer
  RotaryConfig rotary;
  GatedDeltaNetConfig gdn;  // its ids are set per layer
  MoEConfig moe;
  std::vector<int32_t> eos_ids;            // the family's, besides those stated in files
  std::span<const NameRule> names;         // not owned: the family's table; empty: the common names
  std::optional<DiffusionInfo> diffusion;  // absent: autoregressive
  std::optional<DType> stored_dtype;       // stated by config.json
};

// Defaults of a family's transformers configuration class, for fields that config.json lacks. transformers omits such
// fields when it saves a text_config.
struct ClassDefaults {
  int64_t hidden = 4096, intermediate = 22016, vocab = 151936;
  int32_t num_layers = 32, num_heads = 32;
  std::optional<int32_t> num_kv_heads = 32;  // absent: num_attention_heads
  std::optional<int32_t> head_dim;           // absent: hidden_size / num_attention_heads
  int32_t context_length = 32768;
  double eps = 1e-6, rope_theta = 10000;  // rope_theta 0: config.json must state it
  // The rotated share of each head. Absent: the class rotates whole heads and ignores partial_rotary_factor.
  std::optional<double> partial_rotary;
};

// Defaults of the experts' fields.
struct ExpertDefaults {
  int64_t intermediate = 512, shared_intermediate = 512, num_experts = 512, experts_per_token = 10;
};

// Reads the fields common to all families from the text part of `root` (text_config, or root itself). Checks the range
// of every number. Error kModelFile names the key.
ModelConfig common_config(const JsonValue& root, const ClassDefaults& defaults);
// Checks that the fields are consistent, after the family has set them. Error kModelFile or kUnsupported.
void check(const ModelConfig& config);
const JsonValue& text_config_of(const JsonValue& root);
// Returns what the formats of quantised weights depend on.
QuantModel quant_model_of(const ModelConfig& config);
// Applies rope_parameters or rope_scaling to `config`; a missing type is "default".
void read_rope(const JsonValue& rope, RotaryConfig& config);
// Returns the stated dtype of the weights, if any. Error kModelFile for a name other than the three float dtypes.
std::optional<DType> stored_dtype_of(const JsonValue& root);

// Returns the EOS ids of config.json and generation_config.json and the family's own, `ids`. Skips ids outside the
// vocabulary with a warning to `log`.
std::vector<int32_t> eos_ids_of(const ModelDescription& model, int64_t vocab, std::vector<int32_t> ids = {},
                                const LogCallback& log = {});

}  // namespace headrace
