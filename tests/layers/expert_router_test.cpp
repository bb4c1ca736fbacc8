// The router of LLaDA2: sigmoid scores, a bias that selects and does not weigh, groups of experts.
#include "headrace/layers/expert_router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "headrace/ops/cpu/dispatch.h"
#include "support/safetensors_writer.h"

namespace headrace {
namespace {

using Router = ExpertRouterConfig;

// Four groups of two experts; the gate is the identity, so that a token's elements are its logits.
constexpr int64_t kExperts = 8;
const Router kConfig = {.hidden = kExperts,
                        .num_experts = kExperts,
                        .experts_per_token = 2,
                        .scores = Router::Scores::kSigmoid,
                        .selection_bias = Router::SelectionBias::kYes,
                        .num_groups = 4,
                        .groups_per_token = 2,
                        .weight_scale = 2.5f};

Tensor row(const std::vector<float>& values) {
  Tensor out(DType::kF32, {1, static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) set_element(out, static_cast<int64_t>(i), values[i]);
  return out;
}

std::vector<ExpertRouter::Choice> route(const Router& config, const std::vector<float>& logits,
                                        const std::vector<float>& bias, const char* bias_name = "gate.expert_bias") {
  const test::TempDir directory;
  const int64_t experts = config.num_experts;
  const Tensor gate = Tensor::zeros(DType::kF32, {experts, experts}), stored = row(bias);
  for (int64_t e = 0; e < experts; ++e) set_element(gate, e * experts + e, 1);
  test::write_safetensors(directory / "model.safetensors",
                          {{"gate.weight", gate}, {bias_name, stored.view().reshape({experts})}});
  Checkpoint checkpoint = Checkpoint::open(directory.path());
  const ExpertRouter router(WeightScope(checkpoint), config);
  return router({.ops = &cpu::select_kernel_set()}, row(logits));
}

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

TEST(ExpertRouter, TheBiasSelectsAndDoesNotWeigh) {
  Router config = kConfig;
  config.num_groups = config.groups_per_token = 1;
  const auto choices = route(config, {0, 0, 1, 0, 0, 0, 2, 0}, {0, 0, 0, 0, 0, 5, 0, 0});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].expert, 5);  // by its bias alone
  EXPECT_EQ(choices[1].expert, 6);
  const float sum = sigmoid(0) + sigmoid(2);
  EXPECT_NEAR(choices[0].weight, 2.5f * sigmoid(0) / sum, 1e-6);
  EXPECT_NEAR(choices[1].weight, 2.5f * sigmoid(2) / sum, 1e-6);
}

TEST(ExpertRouter, WithoutRenormalisingSigmoidsStandForThemselves) {
  Router config = kConfig;
  config.norm_topk_prob = Router::Renormalise::kNo;
  const auto choices = route(config, {3, 2, 0, 0, 0, 0, 0, 0}, std::vector<float>(8, 0));
  EXPECT_NEAR(choices[0].weight, 2.5f * sigmoid(3), 1e-6);
  EXPECT_NEAR(choices[1].weight, 2.5f * sigmoid(2), 1e-6);
}

TEST(ExpertRouter, AGroupCountsByItsTwoBestTogether) {
  // Expert 0 is the best of all, in a group that loses to two even ones.
  const auto choices = route(kConfig, {4, -9, 1, 1, -9, -9, 1.5f, 1}, std::vector<float>(8, 0));
  EXPECT_EQ(choices[0].expert, 6);
  EXPECT_EQ(choices[1].expert, 2);
}

TEST(ExpertRouter, ExpertsOfOtherGroupsStayOutWhenEveryRankIsNegative) {
  const auto choices = route(kConfig, {0, 0, 0, 0, 0, 0, 0, 0}, {-3, -3, -3, -3, -2, -2, -2, -2});
  EXPECT_EQ(choices[0].expert, 4);  // ties go to the lower expert
  EXPECT_EQ(choices[1].expert, 5);
}

TEST(ExpertRouter, TiesBetweenGroupsGoToTheLower) {
  const auto choices = route(kConfig, {1, 1, 1, 1, 1, 1, 1, 1}, std::vector<float>(8, 0));
  EXPECT_EQ(choices[0].expert, 0);
  EXPECT_EQ(choices[1].expert, 1);
}

// Sorting scores that are NaN would read behind a group's end.
TEST(ExpertRouter, ScoresThatAreNaNChooseExpertsOnceEach) {
  Router config = kConfig;
  config.hidden = config.num_experts = 256, config.experts_per_token = 8;
  for (const bool all : {true, false}) {
    std::vector<float> logits(256, all ? std::nanf("") : 1.0f);
    for (size_t e = 0; e < logits.size(); e += 3) logits[e] = std::nanf("");
    std::set<int32_t> experts;
    for (const auto& choice : route(config, logits, std::vector<float>(256, 0))) experts.insert(choice.expert);
    EXPECT_EQ(experts.size(), 8u);
    EXPECT_TRUE(*experts.begin() >= 0 && *experts.rbegin() < 256);
  }
}

TEST(ExpertRouter, TheBiasHasTwoNames) {
  const std::vector<float> bias = {0, 0, 0, 0, 0, 0, 3, 3};
  for (const char* name : {"gate.expert_bias", "gate.e_score_correction_bias"}) {
    EXPECT_EQ(route(kConfig, std::vector<float>(8, 0), bias, name)[0].expert, 6) << name;
  }
}

TEST(ExpertRouter, AScaleOfEachExpertMultipliesItsWeight) {
  Router config = kConfig;
  config.num_groups = config.groups_per_token = 1;
  config.selection_bias = Router::SelectionBias::kNo;
  config.expert_scale = Router::ExpertScale::kYes;
  const auto choices = route(config, {0, 0, 3, 0, 1, 0, 0, 0}, {1, 1, 0.5f, 1, 4, 1, 1, 1}, "gate.per_expert_scale");
  const float sum = sigmoid(3) + sigmoid(1);
  EXPECT_EQ(choices[0].expert, 2);  // scales do not select
  EXPECT_NEAR(choices[0].weight, 2.5f * 0.5f * sigmoid(3) / sum, 1e-6);
  EXPECT_NEAR(choices[1].weight, 2.5f * 4 * sigmoid(1) / sum, 1e-6);
}

}  // namespace
}  // namespace headrace
