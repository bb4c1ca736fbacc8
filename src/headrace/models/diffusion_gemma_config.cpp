// DiffusionGemma's config.json. Head sizes of full-attention layers are in global_head_dim and
// num_global_key_value_heads, or in per_layer_config in files saved by transformers 5. Source: DiffusionGemma (Google
// DeepMind).
#include <algorithm>

#include "headrace/core/printable.h"
#include "headrace/models/diffusion_gemma.h"
#include "headrace/models/families.h"
#include "headrace/models/model_gemms.h"

namespace headrace {
namespace {

// Returns the full-attention layers: every sixth and the last, unless the file lists them.
std::vector<bool> full_layers(const JsonValue& text, int32_t layers) {
  std::vector<bool> full(static_cast<size_t>(layers));
  for (int32_t i = 0; i < layers; ++i) full[static_cast<size_t>(i)] = (i + 1) % 6 == 0 || i + 1 == layers;
  const JsonValue* listed = text.find("layer_types");
  if (listed == nullptr) return full;
  const std::vector<std::string> names = listed->as_strings();
  HR_REQUIRE(names.size() == full.size(), ErrorCode::kModelFile, listed->where(), " has ", names.size(),
             " entries, expected one for each of ", layers, " layers");
  for (size_t i = 0; i < names.size(); ++i) {
    HR_REQUIRE(names[i] == "full_attention" || names[i] == "sliding_attention", ErrorCode::kUnsupported,
               listed->where(), " names '", names[i], "'; built are: full_attention, sliding_attention");
    full[i] = names[i] == "full_attention";
  }
  full.back() = true;  // always, whatever is listed
  return full;
}

RotaryConfig gemma_rotary_of(const JsonValue& text, bool full) {
  const JsonValue* all = text.find("rope_parameters");
  const JsonValue* own = all != nullptr ? all->find(full ? "full_attention" : "sliding_attention") : nullptr;
  RotaryConfig c{.type = full ? "proportional" : "default"};
  if (own == nullptr) {  // the spelling of Gemma 3's files
    HR_REQUIRE(text.find("rope_scaling") == nullptr, ErrorCode::kUnsupported, text.where(),
               " has rope_scaling, which is not built for this family");
    c.theta = text.float_or(full ? "rope_theta" : "rope_local_base_freq", full ? 1e6 : 1e4);
    if (full) c.partial_rotary_factor = text.float_or("partial_rotary_factor", 0.25);
    return c;
  }
  read_rope(*own, c);
  return c;
}

GemmaAttentionConfig gemma_attention_of(const JsonValue& text, const ModelConfig& c, int32_t layer, bool full) {
  const auto size = [](const JsonValue& from, const char* key, int64_t fallback) {
    return static_cast<int32_t>(from.int_or(key, fallback, 1, 1 << 16));
  };
  GemmaAttentionConfig a{.hidden = c.hidden,
                         .num_heads = size(text, "num_attention_heads", 8),
                         .num_kv_heads = size(text, "num_key_value_heads", 4),
                         .head_dim = size(text, "head_dim", 256),
                         .layer_id = layer,
                         .eps = c.eps};
  const JsonValue* layers = text.find("per_layer_config");
  if (full) a.values = GemmaAttentionConfig::Values::kFromKeys;
  if (!full) a.sliding_window = static_cast<int32_t>(text.int_or("sliding_window", 512, 1, int64_t{1} << 30));
  if (full && layers == nullptr) {  // per_layer_config takes precedence
    a.num_kv_heads = size(text, "num_global_key_value_heads", a.num_kv_heads);
    a.head_dim = size(text, "global_head_dim", 512);
  }
  if (const JsonValue* own = layers != nullptr ? layers->find(std::to_string(layer)) : nullptr; own != nullptr) {
    a.num_kv_heads = size(*own, "num_key_value_heads", a.num_kv_heads);
    a.head_dim = size(*own, "head_dim", a.head_dim);
  }
  HR_REQUIRE(a.num_heads % a.num_kv_heads == 0, ErrorCode::kModelFile, text.where(), " has ", a.num_heads,
             " attention heads, expected a multiple of layer ", layer, "'s ", a.num_kv_heads, " key-value heads");
  return a;
}

void refuse_other_gemma_graphs(const JsonValue& text) {
  const std::string activation = text.string_or("hidden_activation", "gelu_pytorch_tanh");
  HR_REQUIRE(activation == "gelu_pytorch_tanh", ErrorCode::kUnsupported, text.where(), " has hidden_activation '",
             printable(activation), "'; built are: gelu_pytorch_tanh");
  for (const char* key : {"attention_bias", "use_bidirectional_attention"}) {
    const JsonValue* stated = text.find(key);
    const bool set = stated != nullptr && (stated->kind() != JsonValue::Kind::kBool || stated->as_bool());
    HR_REQUIRE(!set, ErrorCode::kUnsupported, text.where(), " has ", key, ", which is not built");
  }
}

DiffusionGemmaConfig gemma_of(const JsonValue& root, const ModelConfig& c) {
  const JsonValue& text = text_config_of(root);
  DiffusionGemmaConfig gemma{.logit_cap = static_cast<float>(text.float_or("final_logit_softcapping", 30))};
  HR_REQUIRE(gemma.logit_cap > 0, ErrorCode::kModelFile, text.where(), " has final_logit_softcapping ", gemma.logit_cap,
             ", expected a number above 0");
  const std::vector<bool> full = full_layers(text, c.num_layers);
  for (int32_t i = 0; i < c.num_layers; ++i) {
    const bool is_full = full[static_cast<size_t>(i)];
    gemma.layers.push_back({gemma_attention_of(text, c, i, is_full), gemma_rotary_of(text, is_full)});
  }
  gemma.moe = {.intermediate = text.at("moe_intermediate_size").as_int(1, kMaxModelDim),
               .activation = Activation::kGelu,
               .router = {.hidden = c.hidden,
                          .num_experts = text.at("num_experts").as_int(1, 1 << 16),
                          .experts_per_token = text.at("top_k_experts").as_int(1, 1 << 16),
                          .expert_scale = ExpertRouterConfig::ExpertScale::kYes}};
  HR_REQUIRE(gemma.moe.router.experts_per_token <= gemma.moe.router.num_experts, ErrorCode::kModelFile,
             text.at("top_k_experts").where(), " is ", gemma.moe.router.experts_per_token, ", expected at most ",
             gemma.moe.router.num_experts, " experts");
  return gemma;
}

constexpr NameRule kGemmaNames[] = {{".moe.gate.per_expert_scale", ".router.per_expert_scale"},
                                    {".moe.gate.", ".router.proj."},
                                    {".moe.experts.", ".experts."}};

}  // namespace

ModelConfig diffusion_gemma_config(const JsonValue& root) {
  const JsonValue& text = text_config_of(root);
  refuse_other_gemma_graphs(text);
  ModelConfig c;
  c.hidden = text.int_or("hidden_size", 2304, 1, kMaxModelDim);
  c.intermediate = text.int_or("intermediate_size", 9216, 1, kMaxModelDim);
  c.vocab = text.int_or("vocab_size", 262144, 1, kMaxModelDim);
  c.num_layers = static_cast<int32_t>(text.int_or("num_hidden_layers", 30, 1, 4096));
  c.context_length = static_cast<int32_t>(text.int_or("max_position_embeddings", 131072, 1, int64_t{1} << 30));
  c.eps = static_cast<float>(text.float_or("rms_norm_eps", 1e-6));
  c.tied_head = text.bool_or("tie_word_embeddings", root.bool_or("tie_word_embeddings", true));
  HR_REQUIRE(c.tied_head, ErrorCode::kUnsupported, root.where(), " has tie_word_embeddings false, which is not built");
  c.stored_dtype = stored_dtype_of(root);
  c.names = kGemmaNames;
  const auto canvas = static_cast<int32_t>(root.int_or("canvas_length", 256, 1, 1 << 16));
  c.diffusion = DiffusionInfo{.block_size = canvas,
                              .sub_block_size = canvas,
                              .attention = DiffusionInfo::Attention::kCanvas,
                              .threshold = 0.1f,
                              .canvas = {.noise_vocab = static_cast<int32_t>(c.vocab)}};
  return c;
}

void read_canvas_schedule(const JsonValue& generation, ModelConfig& config) {
  DiffusionInfo::Canvas& canvas = config.diffusion->canvas;
  const auto number = [&generation](const char* key, float fallback) {
    const auto value = static_cast<float>(generation.float_or(key, static_cast<double>(fallback)));
    HR_REQUIRE(value >= 0, ErrorCode::kModelFile, generation.where(), " has ", key, " ", value, ", expected 0 or more");
    return value;
  };
  canvas.max_steps = static_cast<int32_t>(generation.int_or("max_denoising_steps", canvas.max_steps, 1, 1 << 20));
  canvas.stability = static_cast<int32_t>(generation.int_or("stability_threshold", canvas.stability, 0, 1 << 20));
  canvas.confidence = number("confidence_threshold", canvas.confidence);
  canvas.t_min = number("t_min", canvas.t_min);
  canvas.t_max = number("t_max", canvas.t_max);
  HR_REQUIRE(canvas.t_max > canvas.t_min, ErrorCode::kModelFile, generation.where(), " has t_max ", canvas.t_max,
             ", expected more than t_min ", canvas.t_min);
  const JsonValue* sampler = generation.find("sampler_config");
  if (sampler == nullptr) return;
  const std::string name = sampler->string_or("_cls_name", "EntropyBoundSamplerConfig");
  HR_REQUIRE(name == "EntropyBoundSamplerConfig", ErrorCode::kUnsupported, sampler->where(), " names '",
             printable(name), "'; built are: EntropyBoundSamplerConfig");
  config.diffusion->threshold =
      static_cast<float>(sampler->float_or("entropy_bound", static_cast<double>(config.diffusion->threshold)));
}

ModelInfo stated_diffusion_gemma_info(const JsonValue& root, const ModelConfig& config, DType dtype) {
  return diffusion_gemma_info(config, gemma_of(root, config), dtype);
}

std::vector<ModelGemm> stated_diffusion_gemma_gemms(const JsonValue& root, const ModelConfig& config, DType dtype) {
  return diffusion_gemma_gemms(config, gemma_of(root, config), dtype);
}

std::unique_ptr<Model> make_diffusion_gemma(const JsonValue& root, const ModelConfig& config, Checkpoint checkpoint,
                                            const LayerContext& context) {
  return std::make_unique<DiffusionGemma>(config, gemma_of(root, config), std::move(checkpoint), context);
}

}  // namespace headrace
