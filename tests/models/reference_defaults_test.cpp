// What each family's published loop takes where a request says nothing.
#include "headrace/models/reference_defaults.h"

#include <gtest/gtest.h>

#include <string>

#include "headrace/models/model_registry.h"
#include "support/refusal.h"
#include "support/source_tree.h"

namespace headrace {
namespace {

using Rule = DecodingParams::Rule;
using Guidance = DiffusionInfo::Guidance;
using Scores = LoopScores;

struct Family {
  std::string checkpoint;
  ReferenceDefaults published;
  Guidance guidance = Guidance::kNone;
};

// The makers' generate functions, by their own defaults.
const Family kFamilies[] = {
    {"sdar", {.temperature = 1, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence, .scores = Scores::kOfDraws}},
    {"sdar_moe", {.temperature = 1, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence, .scores = Scores::kOfDraws}},
    {"llada", {.temperature = 0, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence}, Guidance::kMaskedPrompt},
    {"llada_moe", {.temperature = 0, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence}, Guidance::kMaskedPrompt},
    {"llada2", {.temperature = 0, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence, .scores = Scores::kOfDraws}},
    {"dream", {.temperature = 0, .top_k = 0, .top_p = 1, .rule = Rule::kRandom, .scores = Scores::kOfFilters}},
    {"diffucoder", {.temperature = 0, .top_k = 0, .top_p = 1, .rule = Rule::kRandom, .scores = Scores::kOfFilters}},
    {"fast_dllm_v2", {.temperature = 0, .top_p = 0.95f, .rule = Rule::kConfidence, .scores = Scores::kOfDraws}},
    {"stable_diffcoder", {.temperature = 0, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence}},
    {"diffusion_gemma", {.temperature = 1, .top_k = 0, .top_p = 1, .rule = Rule::kConfidence}},
};

TEST(ReferenceDefaults, EveryDiffusionFamilyLoadsWithThoseOfItsPublishedLoop) {
  for (const auto& [checkpoint, published, guidance] : kFamilies) {
    const auto folder = testing_support::golden_folder(checkpoint);
    const auto model = load_model(folder, {.random_weights = 1});
    ASSERT_TRUE(model->info().diffusion) << checkpoint;
    const ReferenceDefaults& got = model->info().diffusion->reference;
    EXPECT_EQ(got.temperature, published.temperature) << checkpoint;
    EXPECT_EQ(got.top_k, published.top_k) << checkpoint;
    EXPECT_EQ(got.top_p, published.top_p) << checkpoint;
    EXPECT_EQ(got.rule, published.rule) << checkpoint;
    EXPECT_EQ(got.scores, published.scores) << checkpoint;
    EXPECT_EQ(got.block_cache, BlockCache::kNo) << checkpoint;
    EXPECT_EQ(model->info().diffusion->guidance, guidance) << checkpoint;
  }
}

TEST(ReferenceDefaults, AFamilyWithoutARowIsABugOfOurs) {
  const auto refused = testing_support::refusal_of([] { reference_defaults("LlamaForCausalLM"); });
  EXPECT_EQ(refused.code, ErrorCode::kInternal);
  EXPECT_EQ(refused.sentence, "reference_defaults has no row for LlamaForCausalLM");
}

}  // namespace
}  // namespace headrace
