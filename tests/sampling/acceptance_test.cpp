#include "headrace/sampling/acceptance.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headrace/ops/random_draw.h"

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

TEST(Acceptance, AThresholdIsSaidOnlyWhereAPassHoldsCandidatesAgainstIt) {
  using Loop = DiffusionInfo::Loop;
  const auto said = [](const DecodingParams& params, Loop loop) {
    return threshold_of(params, {.threshold = 0.85f, .loop = loop, .reference = {}});
  };
  constexpr auto kReference = DecodingParams::Schedule::kReference;
  for (const Loop loop : {Loop::kDynamic, Loop::kEven, Loop::kTimesteps}) {
    EXPECT_EQ(said({}, loop), 0.85f);
    EXPECT_EQ(said({.threshold = 0.5f}, loop), 0.5f);
    EXPECT_EQ(said({.rule = Rule::kLeftmost}, loop), std::nullopt);
  }
  EXPECT_EQ(said({.schedule = kReference}, Loop::kDynamic), 0.85f);
  EXPECT_EQ(said({.schedule = kReference}, Loop::kEven), std::nullopt);
  EXPECT_EQ(said({.schedule = kReference, .threshold = 0.5f}, Loop::kEven), 0.5f);
  EXPECT_EQ(said({.schedule = kReference}, Loop::kTimesteps), std::nullopt);
  EXPECT_EQ(threshold_of({}, {.attention = DiffusionInfo::Attention::kCanvas, .threshold = 0.1f}), 0.1f);
}

TEST(Acceptance, TheBestOfAShareTakeTiesFromTheLeft) {
  const std::vector<SampledToken> candidates = {{.confidence = 0.2f}, {.confidence = 0.7f}, {.confidence = 0.2f}};
  EXPECT_EQ(best_of(candidates, {.rule = Rule::kConfidence}, 2), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(best_of(candidates, {.rule = Rule::kLeftmost}, 2), (std::vector<size_t>{0, 1}));
  EXPECT_EQ(best_of(candidates, {.rule = Rule::kConfidence}, 9).size(), 3u);
  EXPECT_EQ(accepted(candidates, {.rule = Rule::kLeftmost, .threshold = -1}, AtLeast::kOne), (std::vector<size_t>{0}));
}

TEST(Acceptance, ARandomRuleRanksByTheCandidatesNumbersAndNonePassesByItself) {
  const std::vector<SampledToken> c = {{.confidence = 1, .order = 0.3}, {.order = 0.9}, {.order = 0.9}, {.order = 0.1}};
  EXPECT_EQ(accepted(c, {.rule = Rule::kRandom, .threshold = -1}, AtLeast::kNone), Indices{});
  EXPECT_EQ(accepted(c, {.rule = Rule::kRandom, .threshold = -1}, AtLeast::kOne), Indices{1});
  EXPECT_EQ(best_of(c, {.rule = Rule::kRandom}, 3), (Indices{0, 1, 2}));
  EXPECT_EQ(best_of(c, {.rule = Rule::kRandom, .order_temperature = 2}, 1), Indices{1});  // there is nothing to soften
}

// How often each of three candidates is among `count` that are drawn.
std::vector<double> shares(const AcceptanceRule& rule, int32_t count) {
  std::vector<double> taken(3);
  for (int64_t request = 0; request < 20000; ++request) {
    std::vector<SampledToken> c = {with(0.5f), with(0.3f), with(0.2f)};
    for (size_t i = 0; i < c.size(); ++i) c[i].order = order_number(7, request, static_cast<int32_t>(i));
    for (const size_t i : best_of(c, rule, count)) taken[i] += 1.0 / 20000;
  }
  return taken;
}

TEST(Acceptance, AnOrderTemperatureDrawsByTheSoftmaxOfTheScoresWithoutPuttingBack) {
  // Weights exp(0.5 / t), exp(0.3 / t), exp(0.2 / t) with t = 0.2.
  const double w[] = {std::exp(2.5), std::exp(1.5), std::exp(1.0)}, sum = w[0] + w[1] + w[2];
  const auto one = shares({.order_temperature = 0.2f}, 1), two = shares({.order_temperature = 0.2f}, 2);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(one[i], w[i] / sum, 0.01) << i;
    double second = 0;
    for (size_t j = 0; j < 3; ++j) second += j == i ? 0 : w[j] / sum * w[i] / (sum - w[j]);
    EXPECT_NEAR(two[i], w[i] / sum + second, 0.01) << i;
  }
  const auto best = shares({.order_temperature = 0}, 1);
  EXPECT_EQ(best[1] + best[2], 0);
}

TEST(Acceptance, TheEntropyBoundAddsUpWhatStandsBefore) {
  const std::vector<SampledToken> c = {with(0, 0, 0.5f), with(0, 0, 0.02f), with(0, 0, 0.07f), with(0, 0, 0.3f)};
  // Ascending: 0.02, 0.07, 0.3, 0.5; before them 0, 0.02, 0.09, 0.39.
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropyBound, .threshold = 0.1f}, AtLeast::kNone), (Indices{1, 2, 3}));
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropyBound, .threshold = 0.0f}, AtLeast::kNone), Indices{1});
  EXPECT_EQ(accepted(c, {.rule = Rule::kEntropyBound, .threshold = 9.0f}, AtLeast::kNone), (Indices{0, 1, 2, 3}));
}

TEST(Acceptance, ARuleThatNobodyStatesIsThePublishedLoopsForItsRequestsAlone) {
  using Schedule = DecodingParams::Schedule;
  const DiffusionInfo dream{.reference = {.rule = Rule::kRandom}};
  EXPECT_EQ(rule_of({}, dream), Rule::kConfidence);
  EXPECT_EQ(rule_of({.schedule = Schedule::kReference}, dream), Rule::kRandom);
  EXPECT_EQ(rule_of({.rule = Rule::kEntropy, .schedule = Schedule::kReference}, dream), Rule::kEntropy);
  EXPECT_EQ(acceptance_rule({.schedule = Schedule::kReference}, dream).rule, Rule::kRandom);
  EXPECT_EQ(rule_of({}, {.attention = DiffusionInfo::Attention::kCanvas}), Rule::kEntropyBound);
}

TEST(Acceptance, ARequestWithoutAThresholdTakesTheModels) {
  const DiffusionInfo info{.threshold = 0.7f, .acceptance = DiffusionInfo::Acceptance::kAtLeast};
  EXPECT_EQ(acceptance_rule({}, info).threshold, 0.7f);
  EXPECT_EQ(acceptance_rule({.threshold = 0.4f}, info).threshold, 0.4f);
  EXPECT_EQ(acceptance_rule({}, info).passes, DiffusionInfo::Acceptance::kAtLeast);
}

}  // namespace
}  // namespace headrace
