// LLaDA-MoE: Qwen3-MoE with full attention and routing weights that are never renormalised, whatever norm_topk_prob
// says.
// Source: LLaDA-MoE (inclusionAI). block_size is for semi-autoregressive decoding: the model has none.
#include "headrace/core/printable.h"
#include "headrace/models/families.h"

namespace headrace {
namespace {

// 1 for every layer, or one number per layer: 1 if it has experts.
std::vector<bool> moe_layers_of(const JsonValue& root, int32_t layers) {
  std::vector<bool> moe(static_cast<size_t>(layers), true);
  const JsonValue* stated = root.find("moe_layer_freq");
  if (stated == nullptr || !stated->is_array()) return moe;
  const std::vector<int64_t> flags = stated->as_ints(0, 1);
  HR_REQUIRE(flags.size() == moe.size(), ErrorCode::kModelFile, stated->where(), " has ", flags.size(),
             " entries, expected one for each of ", layers, " layers");
  for (size_t i = 0; i < moe.size(); ++i) moe[i] = flags[i] == 1;
  return moe;
}

void refuse_other_llada_moe_graphs(const JsonValue& root) {
  const std::string scores = root.string_or("moe_router_score_function", root.string_or("score_function", "softmax"));
  HR_REQUIRE(scores == "softmax", ErrorCode::kUnsupported, root.where(), " has router scores '", printable(scores),
             "'; built are: softmax");
  for (const char* key : {"moe_router_enable_expert_bias", "attention_bias"}) {
    HR_REQUIRE(!root.bool_or(key, false), ErrorCode::kUnsupported, root.where(), " has ", key,
               ", which is not built for this family");
  }
  HR_REQUIRE(root.find("clip_qkv") == nullptr, ErrorCode::kUnsupported, root.where(),
             " has clip_qkv, which is not built");
  HR_REQUIRE(root.int_or("shared_expert_intermediate_size", 0) == 0, ErrorCode::kUnsupported, root.where(),
             " has shared_expert_intermediate_size, which is not built for this family");
}

}  // namespace

ModelConfig llada_moe_config(const JsonValue& root) {
  refuse_other_llada_moe_graphs(root);
  // Copies of the class differ in their defaults, so fields that every released file states are required.
  for (const char* key : {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads"}) root.at(key);
  ModelConfig c = common_config(
      root, {.intermediate = 0, .num_kv_heads = std::nullopt, .context_length = 8192, .eps = 1e-5, .rope_theta = 0});
  c.intermediate = root.int_or("dense_intermediate_size", c.intermediate, 0, kMaxModelDim);
  if (root.bool_or("qk_layernorm", true)) c.attention.qk_norm = SelfAttentionConfig::QKNorm::kYes;
  c.moe_layers = moe_layers_of(root, c.num_layers);
  c.moe = {.intermediate = root.at("expert_intermediate_size").as_int(1, kMaxModelDim),
           .router = {.hidden = c.hidden,
                      .num_experts = root.at("num_experts").as_int(1, 1 << 16),
                      .experts_per_token = root.at("num_experts_per_tok").as_int(1, 1 << 16),
                      .norm_topk_prob = ExpertRouterConfig::Renormalise::kNo}};
  check_router(root, c.moe.router);
  c.diffusion = DiffusionInfo{.mask_token_id = read_mask_token_id(root, 156895, c.vocab),
                              .block_size = 32,
                              .sub_block_size = 32,
                              .attention = DiffusionInfo::Attention::kFull,
                              .acceptance = DiffusionInfo::Acceptance::kAtLeast,
                              .loop = DiffusionInfo::Loop::kEven,
                              .guidance = DiffusionInfo::Guidance::kMaskedPrompt};
  return c;
}

}  // namespace headrace
