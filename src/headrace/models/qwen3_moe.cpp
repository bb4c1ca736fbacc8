// Qwen3-MoE: Qwen3 attention; experts in every layer that config.json does not exclude.
// Source: Qwen3 technical report.
#include <algorithm>

#include "headrace/models/families.h"

namespace headrace {

namespace {

// Files saved by transformers 5 use num_local_experts; released ones num_experts.
int64_t num_experts_of(const JsonValue& text, int64_t fallback) {
  return text.int_or("num_experts", text.int_or("num_local_experts", fallback, 1, 1 << 16), 1, 1 << 16);
}

}  // namespace

void check_router(const JsonValue& text, const ExpertRouterConfig& c) {
  HR_REQUIRE(c.num_experts % c.num_groups == 0, ErrorCode::kModelFile, text.where(), " has ", c.num_experts,
             " experts, expected a multiple of n_group ", c.num_groups);
  HR_REQUIRE(c.groups_per_token <= c.num_groups, ErrorCode::kModelFile, text.where(), " has topk_group ",
             c.groups_per_token, ", expected at most n_group ", c.num_groups);
  const int64_t eligible = c.num_experts / c.num_groups * c.groups_per_token;
  HR_REQUIRE(c.experts_per_token <= eligible, ErrorCode::kModelFile, text.where(), " has num_experts_per_tok ",
             c.experts_per_token, ", expected at most ", eligible, " experts");
}

void read_moe(const JsonValue& text, const ExpertDefaults& defaults, ModelConfig& c) {
  c.moe = {
      .intermediate = text.int_or("moe_intermediate_size", defaults.intermediate, 1, 1 << 24),
      .shared_intermediate = text.int_or("shared_expert_intermediate_size", defaults.shared_intermediate, 0, 1 << 24),
      .router = {.hidden = c.hidden,
                 .num_experts = num_experts_of(text, defaults.num_experts),
                 .experts_per_token = text.int_or("num_experts_per_tok", defaults.experts_per_token, 1, 1 << 16)}};
  check_router(text, c.moe.router);
  const int64_t step = text.int_or("decoder_sparse_step", 1, 1);
  const JsonValue* dense = text.find("mlp_only_layers");
  const std::vector<int64_t> dense_layers = dense != nullptr ? dense->as_ints() : std::vector<int64_t>();
  for (int64_t i = 0; i < c.num_layers; ++i) {
    c.moe_layers.push_back((i + 1) % step == 0 && std::ranges::find(dense_layers, i) == dense_layers.end());
  }
}

ModelConfig qwen3_moe_config(const JsonValue& root) {
  ModelConfig c = qwen3_config_with(root, {.hidden = 2048, .intermediate = 6144, .num_layers = 24, .num_kv_heads = 4});
  read_moe(text_config_of(root), {.intermediate = 768, .num_experts = 128, .experts_per_token = 8}, c);
  const bool renormalise = text_config_of(root).bool_or("norm_topk_prob", false);
  c.moe.router.norm_topk_prob =
      renormalise ? ExpertRouterConfig::Renormalise::kYes : ExpertRouterConfig::Renormalise::kNo;
  c.moe.shared_intermediate = 0;
  return c;
}

}  // namespace headrace
