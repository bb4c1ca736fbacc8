// Which weight gets which format.
#include "headrace/weights/quant_preset.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "headrace/core/error.h"

namespace headrace {
namespace {

using F = BlockFormat;
using P = QuantPreset;
constexpr QuantModel kLayers36{.num_layers = 36};

std::optional<F> format_in(P preset, const std::string& name, int64_t columns = 1024,
                           const QuantModel& model = kLayers36) {
  return block_format_for(name, {512, columns}, preset, model);
}

TEST(QuantPreset, HasNames) {
  for (const P preset : {P::kQ8_0, P::kQ4_K_M, P::kQ5_K_M, P::kQ6_K}) {
    EXPECT_EQ(quant_preset_named(name_of(preset)), preset);
  }
  EXPECT_EQ(name_of(P::kQ4_K_M), "q4_k_m");
  EXPECT_EQ(quant_preset_named("q4_0"), std::nullopt);
}

// Of 36 layers these get more bits: the first and the last four, and each third one from the seventh on.
TEST(QuantPreset, ValuesAndDownProjectionsGetMoreBitsInHalfTheLayers) {
  std::vector<int64_t> more;
  for (int64_t i = 0; i < 36; ++i) {
    const auto format = format_in(P::kQ4_K_M, str("model.layers.", i, ".self_attn.v_proj.weight"));
    EXPECT_EQ(format_in(P::kQ4_K_M, str("blk.", i, ".attn_v.weight")), format);
    EXPECT_EQ(format_in(P::kQ4_K_M, str("model.layers.", i, ".mlp.down_proj.weight")), format);
    EXPECT_EQ(format_in(P::kQ4_K_M, str("model.layers.", i, ".mlp.experts.7.down_proj.weight")), format);
    EXPECT_EQ(format_in(P::kQ4_K_M, str("blk.", i, ".ffn_down_exps.weight")), format);
    EXPECT_EQ(format_in(P::kQ4_K_M, str("blk.", i, ".attn_qkv.weight")), format);
    EXPECT_EQ(format_in(P::kQ5_K_M, str("blk.", i, ".attn_v.weight")) == F::kQ6_K, format == F::kQ6_K);
    EXPECT_EQ(format_in(P::kQ4_K_M, str("blk.", i, ".ffn_up.weight")), F::kQ4_K);
    if (format == F::kQ6_K) more.push_back(i);
  }
  EXPECT_EQ(more, (std::vector<int64_t>{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31, 32, 33, 34, 35}));
}

TEST(QuantPreset, HeadsGetMoreBitsAndEmbeddingsWhereTheyAreTheHead) {
  const QuantModel tied{.num_layers = 36, .head = QuantModel::Head::kIsEmbedding};
  for (const std::string name : {"model.embed_tokens.weight", "token_embd.weight"}) {
    EXPECT_EQ(format_in(P::kQ4_K_M, name), F::kQ4_K);
    EXPECT_EQ(format_in(P::kQ4_K_M, name, 1024, tied), F::kQ6_K);
    EXPECT_EQ(format_in(P::kQ8_0, name, 1024, tied), F::kQ8_0);
  }
  for (const std::string name : {"lm_head.weight", "output.weight"}) {
    EXPECT_EQ(format_in(P::kQ4_K_M, name), F::kQ6_K);
    EXPECT_EQ(format_in(P::kQ5_K_M, name), F::kQ6_K);
    EXPECT_EQ(format_in(P::kQ8_0, name), F::kQ8_0);
  }
  EXPECT_EQ(format_in(P::kQ5_K_M, "blk.5.attn_output.weight"), F::kQ5_K);
}

TEST(QuantPreset, WhatWorksOnTheStateKeepsItsFloats) {
  for (const std::string name :
       {"model.layers.0.linear_attn.in_proj_a.weight", "model.layers.0.linear_attn.in_proj_b.weight",
        "model.layers.0.linear_attn.in_proj_ba.weight", "model.layers.0.linear_attn.conv1d.weight",
        "model.layers.0.linear_attn.A_log", "model.layers.0.linear_attn.dt_bias", "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.shared_expert_gate.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_norm.weight", "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight",
        "blk.0.ssm_ba.weight", "blk.0.ssm_conv1d.weight", "blk.0.ffn_gate_inp.weight", "blk.0.attn_norm.weight",
        "blk.0.surprise.weight", "model.layers.0.self_attn.q_proj.bias"}) {
    for (const P preset : {P::kQ8_0, P::kQ4_K_M, P::kQ5_K_M, P::kQ6_K}) {
      EXPECT_EQ(format_in(preset, name), std::nullopt) << name;
    }
  }
  EXPECT_EQ(block_format_for("model.layers.0.self_attn.v_proj.weight", {1024}, P::kQ8_0, kLayers36), std::nullopt);
}

TEST(QuantPreset, RowsThatALargeBlockDoesNotDivideTakeASmallOne) {
  const std::string up = "model.layers.9.mlp.up_proj.weight", head = "lm_head.weight";
  EXPECT_EQ(format_in(P::kQ4_K_M, up, 896), F::kQ5_0);
  EXPECT_EQ(format_in(P::kQ5_K_M, up, 896), F::kQ5_1);
  EXPECT_EQ(format_in(P::kQ6_K, up, 896), F::kQ8_0);
  EXPECT_EQ(format_in(P::kQ8_0, up, 896), F::kQ8_0);
  EXPECT_EQ(format_in(P::kQ4_K_M, head, 896), F::kQ8_0);
  for (const P preset : {P::kQ8_0, P::kQ4_K_M, P::kQ5_K_M, P::kQ6_K}) {
    EXPECT_EQ(format_in(preset, up, 900), std::nullopt);
  }
}

TEST(QuantPreset, StackedExpertsAreMatrices) {
  EXPECT_EQ(block_format_for("model.layers.9.mlp.experts.gate_up_proj", {8, 96, 512}, P::kQ4_K_M, kLayers36), F::kQ4_K);
  EXPECT_EQ(block_format_for("model.layers.9.mlp.experts.down_proj", {8, 96, 256}, P::kQ4_K_M, kLayers36), F::kQ6_K);
}

}  // namespace
}  // namespace headrace
