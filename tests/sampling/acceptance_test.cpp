#include "headrace/sampling/acceptance.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

using Rule = DecodingParams::Rule;
using Indices = std::vector<size_t>;

SampledToken with(float confidence, float margin = 0, float entropy = 0) {
  return {.confidence = confidence, .margin = margin, .entropy = entropy};
}

TEST(Acceptance, ConfidenceMustExceedTheThresholdOrReachItAsTheFamilySays) {
  const std::vector<SampledToken> c = {with(0.9f), with(0.95f), with(0.2f)};
  AcceptanceRule rule{.threshold = 0.9f};
  EXPECT_EQ(accepted(c, rule, AtLeast::kOne), Indices{1});
  rule.passes = DiffusionInfo::Acceptance::kAtLeast;
  EXPECT_EQ(accepted(c, rule, AtLeast::kOne), (Indices{0, 1}));
}

TEST(Acceptance, TheBestIsKeptWhenNonePassesAndTiesGoToTheLowest) {
  const std::vector<SampledToken> c = {with(0.1f), with(0.3f), with(0.3f)};
  EXPECT_EQ(accepted(c, {}, AtLeast::kOne), Indices{1});
  EXPECT_EQ(accepted(c, {}, AtLeast::kNone), Indices{});
  EXPECT_EQ(accepted({}, {}, AtLeast::kOne), Indices{});
}

TEST(Acceptance, MarginAndEntropyRankAndPassByThemselves) {
  const std::vector<SampledToken> c = {with(0.9f, 0.1f, 2.0f), with(0.5f, 0.4f, 0.1f), with(0.6f, 0.2f, 0.3f)};
  EXPECT_EQ(accepted(c, {.rule = Rule::kMargin, .threshold = 0.15f}, AtLeast::kNone), (Indices{1, 2}));
  EXPECT_EQ(accepted(c, {.rule = Rule::kMargin, .threshold = 0.9f}, AtLeast::kOne), Indices{1});
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropy, .threshold = 0.3f}, AtLeast::kNone), (Indices{1, 2}));
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropy, .threshold = 0.01f}, AtLeast::kOne), Indices{1});
}

TEST(Acceptance, TheBestOfAShareTakeTiesFromTheLeft) {
  const std::vector<SampledToken> candidates = {{.confidence = 0.2f}, {.confidence = 0.7f}, {.confidence = 0.2f}};
  EXPECT_EQ(best_of(candidates, Rule::kConfidence, 2), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(best_of(candidates, Rule::kLeftmost, 2), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(best_of(candidates, Rule::kConfidence, 9).size(), 3u);
  EXPECT_EQ(accepted(candidates, {.rule = Rule::kLeftmost, .threshold = -1}, AtLeast::kOne), (std::vector<size_t>{0}));
}

TEST(Acceptance, TheEntropyBoundAddsUpWhatStandsBefore) {
  const std::vector<SampledToken> c = {with(0, 0, 0.5f), with(0, 0, 0.02f), with(0, 0, 0.07f), with(0, 0, 0.3f)};
  // Ascending: 0.02, 0.07, 0.3, 0.5; before them 0, 0.02, 0.09, 0.39.
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropyBound, .threshold = 0.1f}, AtLeast::kNone), (Indices{1, 2, 3}));
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropyBound, .threshold = 0.0f}, AtLeast::kNone), Indices{1});
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropyBound, .threshold = 9.0f}, AtLeast::kNone), (Indices{0, 1, 2, 3}));
}

TEST(Acceptance, ARequestWithoutAThresholdTakesTheModels) {
  const DiffusionInfo info{.threshold = 0.7f, .acceptance = DiffusionInfo::Acceptance::kAtLeast};
  EXPECT_EQ(acceptance_rule({}, info).threshold, 0.7f);
  EXPECT_EQ(acceptance_rule({.threshold = 0.4f}, info).threshold, 0.4f);
  EXPECT_EQ(acceptance_rule({}, info).passes, DiffusionInfo::Acceptance::kAtLeast);
}

}  // namespace
}  // namespace headrace
