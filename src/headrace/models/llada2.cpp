// LLaDA2.0 and LLaDA2.1: block attention with blocks of 32; half of each head rotates; a sigmoid router, limited to the
// best groups of experts, whose bias affects selection only; a shared expert of weight 1.
// Source: LLaDA2.0 (inclusionAI), on the Ling 2.0 architecture.
#include <algorithm>

#include "headrace/core/printable.h"
#include "headrace/models/families.h"

namespace headrace {
namespace {

constexpr int64_t kHidden = 1024;  // the class's defaults
constexpr int32_t kHeads = 16;

constexpr NameRule kLlada2Names[] = {
    {"model.embed_tokens.", "model.word_embeddings."},   {".self_attn.qkv_proj.", ".attention.query_key_value."},
    {".self_attn.o_proj.", ".attention.dense."},         {".self_attn.q_norm.", ".attention.query_layernorm."},
    {".self_attn.k_norm.", ".attention.key_layernorm."}, {".mlp.shared_expert.", ".mlp.shared_experts."}};

ExpertRouterConfig router_of(const JsonValue& root, int64_t hidden) {
  const std::string scores = root.string_or("score_function", "sigmoid");
  HR_REQUIRE(scores == "sigmoid", ErrorCode::kUnsupported, root.where(), " has score_function '", printable(scores),
             "'; built are: sigmoid");
  const bool bias = root.bool_or("moe_router_enable_expert_bias", true), norm = root.bool_or("norm_topk_prob", true);
  using Router = ExpertRouterConfig;
  const Router router{.hidden = hidden,
                      .num_experts = root.int_or("num_experts", 16, 1, 1 << 16),
                      .experts_per_token = root.int_or("num_experts_per_tok", 2, 1, 1 << 16),
                      .scores = Router::Scores::kSigmoid,
                      .norm_topk_prob = norm ? Router::Renormalise::kYes : Router::Renormalise::kNo,
                      .selection_bias = bias ? Router::SelectionBias::kYes : Router::SelectionBias::kNo,
                      .num_groups = root.int_or("n_group", 8, 1, 1 << 16),
                      .groups_per_token = root.int_or("topk_group", 4, 1, 1 << 16),
                      .weight_scale = static_cast<float>(root.float_or("routed_scaling_factor", 2.5))};
  check_router(root, router);
  return router;
}

// Returns the rotated share of each head without a stated factor: a stated number of elements, or half.
double rotary_share(const JsonValue& root) {
  const JsonValue* stated = root.find("rotary_dim");
  if (stated == nullptr) return 0.5;
  constexpr int64_t kMaxDim = int64_t{1} << 24;
  const int64_t heads = root.int_or("num_attention_heads", kHeads, 1, 1 << 16);
  const int64_t width = std::max<int64_t>(root.int_or("hidden_size", kHidden, 1, kMaxDim) / heads, 1);
  const int64_t head_dim = root.int_or("head_dim", width, 1, 1 << 16);
  return static_cast<double>(stated->as_int(1, head_dim)) / static_cast<double>(head_dim);
}

}  // namespace

ModelConfig llada2_config(const JsonValue& root) {
  ModelConfig c = common_config(root, {.hidden = kHidden,
                                       .intermediate = 0,
                                       .vocab = 30592,
                                       .num_layers = 24,
                                       .num_heads = kHeads,
                                       .num_kv_heads = std::nullopt,
                                       .context_length = 16384,
                                       .eps = 1e-5,
                                       .partial_rotary = rotary_share(root)});
  c.names = kLlada2Names;
  c.attention.projections = SelfAttentionConfig::Projections::kFused;
  c.attention.qk_norm = SelfAttentionConfig::QKNorm::kYes;  // the reference applies it whatever use_qk_norm says
  c.attention.qkv_bias = root.bool_or("use_qkv_bias", false) ? HasBias::kYes : HasBias::kNo;
  c.attention.o_bias = root.bool_or("use_bias", true) ? HasBias::kYes : HasBias::kNo;  // the class's default is true
  const int64_t dense = root.int_or("first_k_dense_replace", 0, 0, c.num_layers);
  for (int64_t i = 0; i < c.num_layers; ++i) c.moe_layers.push_back(i >= dense);
  const int64_t width = root.at("moe_intermediate_size").as_int(1, kMaxModelDim);
  c.moe = {.intermediate = width,
           .shared_intermediate = width * root.int_or("num_shared_experts", 0, 0, 64),
           .shared_gate = MoEConfig::SharedGate::kNone,
           .router = router_of(root, c.hidden)};
  const int32_t block = read_block_size(root, "block_size", 32);
  c.diffusion = DiffusionInfo{.mask_token_id = read_mask_token_id(root, 156895, c.vocab),
                              .block_size = block,
                              .sub_block_size = block,
                              .threshold = 0.95f,
                              .edits = DiffusionInfo::Edits::kMaybe};
  return c;
}

std::optional<std::string> read_llada2_name(const JsonValue&, std::string_view name, ModelConfig& config) {
  const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
  if (has("LLaDA2.0") && !has("DMax")) config.diffusion->edits = DiffusionInfo::Edits::kNone;
  return std::nullopt;
}

}  // namespace headrace
