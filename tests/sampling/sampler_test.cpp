#include "headrace/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "headrace/core/error.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace/ops/random_draw.h"
#include "support/refusal.h"

namespace headrace {
namespace {

SampledToken pick(const std::vector<float>& values, const SamplingParams& params, const SampleSpot& spot = {},
                  std::optional<int32_t> excluded_id = {}) {
  const Tensor logits(DType::kF32, {1, static_cast<int64_t>(values.size())});
  std::ranges::copy(values, logits.data_as<float>());
  SampleSpot full = spot;
  full.params = &params;
  const Sampler sampler(cpu::select_kernel_set(), {}, static_cast<int32_t>(values.size()));
  return sampler.sample(logits, {&full, 1}, excluded_id).front();
}

std::map<int32_t, int> histogram(const std::vector<float>& logits, const SamplingParams& params) {
  std::map<int32_t, int> counts;
  for (int64_t position = 0; position < 4000; ++position) ++counts[pick(logits, params, {.position = position}).id];
  return counts;
}

TEST(Sampler, B25_GreedyTiesGoToTheLowestId) { EXPECT_EQ(pick({1, 3, 3, 2}, {.temperature = 0}).id, 1); }

TEST(Sampler, DescribesTheDistribution) {
  const SampledToken t = pick({std::log(1.0f), std::log(2.0f), std::log(5.0f)}, {.temperature = 0});
  EXPECT_EQ(t.id, 2);
  EXPECT_NEAR(t.confidence, 0.625, 1e-6);
  EXPECT_NEAR(t.logprob, std::log(0.625), 1e-6);
  EXPECT_NEAR(t.margin, 0.375, 1e-6);
  EXPECT_NEAR(t.entropy, -(0.625 * std::log(0.625) + 0.25 * std::log(0.25) + 0.125 * std::log(0.125)), 1e-6);
}

TEST(Sampler, NamesTheLikeliestTokensOfARowThatItRead) {
  const std::vector<float> values = {1, 4, 2, 4, 9, 3};
  const Tensor logits(DType::kF32, {1, 6});
  std::ranges::copy(values, logits.data_as<float>());
  const SamplingParams params{.temperature = 0};
  const SampleSpot spot{.params = &params};
  const Sampler sampler(cpu::select_kernel_set(), {}, 6);
  const SampledToken read = sampler.sample(logits, {&spot, 1}, 4).front();
  const auto shares = sampler.likeliest(logits.view().select(0), read, 3, 4);
  double sum = 0;
  for (const size_t i : {0u, 1u, 2u, 3u, 5u}) sum += std::exp(static_cast<double>(values[i]));
  ASSERT_EQ(shares.size(), 3u);
  const int32_t want[] = {1, 3, 5};  // ties go to the lowest id, and 4 is excluded
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(shares[i].id, want[i]);
    EXPECT_NEAR(shares[i].probability, std::exp(static_cast<double>(values[static_cast<size_t>(want[i])])) / sum, 1e-6);
  }
  EXPECT_EQ(sampler.likeliest(logits.view().select(0), read, 99, 4).size(), 5u);
}

TEST(Sampler, B27_TheNumbersThatPositionsAreRankedByAreAThirdStream) {
  const SampledToken t = pick({1, 2}, {.temperature = 0, .seed = 3}, {.position = 5, .step = 2});
  EXPECT_EQ(t.order, order_number(3, 5, 2));
  EXPECT_NE(t.order, uniform(3, 5, 2));
  EXPECT_NE(t.order, order_number(3, 5, 1));
  EXPECT_NE(t.order, order_number(3, 6, 2));
  EXPECT_NE(t.order, order_number(4, 5, 2));
}

TEST(Sampler, DrawsInProportionAndFiltersCutTheTail) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  const auto free = histogram(logits, {});
  EXPECT_NEAR(free.at(2) / 4000.0, 0.625, 0.03);
  EXPECT_NEAR(free.at(0) / 4000.0, 0.125, 0.03);
  EXPECT_EQ(histogram(logits, {.top_k = 2}).count(0), 0u);
  EXPECT_EQ(histogram(logits, {.top_p = 0.6f}).size(), 1u);
  EXPECT_EQ(histogram(logits, {.top_p = 0.7f}).size(), 2u);
  EXPECT_EQ(histogram(logits, {.min_p = 0.3f}).size(), 2u);
}

TEST(Sampler, TheSameSeedAndPositionGiveTheSameTokenAndOthersDoNot) {
  const std::vector<float> logits(100, 0.0f);
  int different = 0;
  for (int64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(pick(logits, {.seed = 5}, {.position = position}).id,
              pick(logits, {.seed = 5}, {.position = position}).id);
    different +=
        pick(logits, {.seed = 5}, {.position = position}).id != pick(logits, {.seed = 6}, {.position = position}).id
            ? 1
            : 0;
  }
  EXPECT_GT(different, 40);
}

TEST(Sampler, ThePenaltyLowersTokensThatOccurredOnce) {
  constexpr int32_t kTwice[] = {0, 0};
  EXPECT_EQ(pick({2, 1.5f}, {.temperature = 0, .repetition_penalty = 2}, {.history = kTwice}).id, 1);
  EXPECT_EQ(pick({-1, -1.5f}, {.temperature = 0, .repetition_penalty = 2}, {.history = kTwice}).id, 1);
}

TEST(Sampler, PaddingRowsOfTheHeadAreNeverChosen) {
  const Tensor logits(DType::kF32, {1, 3});
  for (int64_t i = 0; i < 3; ++i) set_element(logits, i, static_cast<double>(i));
  const SamplingParams greedy{.temperature = 0};
  const SampleSpot spot{.params = &greedy};
  EXPECT_EQ(Sampler(cpu::select_kernel_set(), {}, 2).sample(logits, {&spot, 1}).front().id, 1);
}

// transformers' log_softmax is over all of them: a tokenizer has 151669 tokens where its model has 151936.
TEST(Sampler, PaddingRowsOfTheHeadHaveTheirShareOfTheProbability) {
  const Tensor logits(DType::kF32, {1, 5});
  for (int64_t i = 0; i < 5; ++i) set_element(logits, i, std::log(static_cast<double>(1 + i)));  // 1 to 5 of 15
  const SamplingParams greedy{.temperature = 0};
  const SampleSpot spot{.params = &greedy};
  const SampledToken t = Sampler(cpu::select_kernel_set(), {}, 2).sample(logits, {&spot, 1}).front();
  EXPECT_EQ(t.id, 1);
  EXPECT_NEAR(t.logprob, std::log(2 / 15.0), 1e-6);
  EXPECT_NEAR(t.confidence, 2 / 15.0, 1e-6);
  EXPECT_NEAR(t.margin, 1 / 15.0, 1e-6);
  EXPECT_TRUE(t.is_valid());
  set_element(logits, 4, std::nan(""));
  EXPECT_FALSE(Sampler(cpu::select_kernel_set(), {}, 2).sample(logits, {&spot, 1}).front().is_valid());
}

TEST(Sampler, AMaskBehindTheTokenizersVocabularyIsExcludedAsItIs) {
  const Tensor logits(DType::kF32, {1, 3});
  for (int64_t i = 0; i < 3; ++i) set_element(logits, i, static_cast<double>(i));
  const SamplingParams greedy{.temperature = 0};
  const SampleSpot spot{.params = &greedy};
  const SampledToken t = Sampler(cpu::select_kernel_set(), {}, 2).sample(logits, {&spot, 1}, 2).front();
  EXPECT_EQ(t.id, 1);
  EXPECT_NEAR(t.logprob, -std::log(1 + std::exp(-1.0)), 1e-6) << "it has no share";
}

// The shares are 6 to 1 of 21, whatever changes the logits before the token is chosen.
TEST(Sampler, LogProbabilitiesAreTheModelsWhateverChangesTheLogits) {
  std::vector<float> row;
  for (int i = 6; i > 0; --i) row.push_back(std::log(static_cast<float>(i)) - 1);  // some below 0
  const auto share = [](int i) { return std::log((6 - i) / 21.0); };
  const std::vector<int32_t> history = {0, 0, 5}, banned = {0, 1};
  const SamplingParams penalty{.temperature = 0, .repetition_penalty = 4}, greedy{.temperature = 0};
  const struct {
    const char* what;
    const SamplingParams& params;
    SampleSpot spot;
    int32_t id;
  } cases[] = {{"a penalty", penalty, {.history = history}, 1},
               {"a ban", greedy, {.banned_ids = banned}, 2},
               {"a temperature", greedy, {.temperature = 0.25f}, 0},
               {"all of them", penalty, {.history = history, .temperature = 0.25f, .banned_ids = banned}, 2}};
  for (const auto& c : cases) {
    const SampledToken t = pick(row, c.params, c.spot);
    EXPECT_EQ(t.id, c.id) << c.what;
    EXPECT_NEAR(t.logprob, share(t.id), 1e-6) << c.what;
    EXPECT_NEAR(t.best_model_logprob, share(t.best_id), 1e-6) << c.what;
    EXPECT_GT(t.confidence, std::exp(t.logprob) + 0.01f) << c.what << " decides by the changed logits";
  }
}

TEST(Sampler, LogProbabilitiesOfTokensThatArePenalisedAndDrawnAllTheSameAreTheModels) {
  const std::vector<int32_t> history = {0};
  const SamplingParams drawn{.repetition_penalty = 2, .decoding = {.copy_penalty = 0.5f}};
  std::map<int32_t, int> counts;
  for (int64_t position = 0; position < 50; ++position) {
    const SampledToken t = pick({2, 2}, drawn, {.history = history, .position = position, .discouraged_id = 0});
    ++counts[t.id];
    EXPECT_NEAR(t.logprob, std::log(0.5), 1e-6) << t.id;
  }
  EXPECT_EQ(counts.size(), 2u);
}

TEST(Sampler, LogProbabilitiesAreTheModelsBehindGuidanceToo) {
  const Tensor guided(DType::kF32, {1, 2}), own(DType::kF32, {1, 2});
  for (int64_t i = 0; i < 2; ++i) {
    set_element(guided, i, i == 0 ? 0 : 9);
    set_element(own, i, std::log(i == 0 ? 3.0 : 1.0));
  }
  SamplingParams greedy{.temperature = 0};
  greedy.decoding.cfg_scale = 1;
  const SampleSpot spot{.params = &greedy};
  const SampledToken t = Sampler(cpu::select_kernel_set(), {}, 2).sample(guided, {&spot, 1}, {}, own).front();
  EXPECT_EQ(t.id, 1);
  EXPECT_NEAR(t.logprob, std::log(0.25), 1e-6);
  EXPECT_NEAR(t.best_model_logprob, std::log(0.25), 1e-6);
  EXPECT_GT(t.confidence, 0.99f);
}

TEST(Sampler, AGuidedNeighbourDoesNotChangeTheBitsOfARow) {
  constexpr int32_t kVocab = 50;
  const SamplingParams plain{.temperature = 0, .repetition_penalty = 1.2f};
  SamplingParams guided = plain;
  guided.decoding.cfg_scale = 2;
  std::vector<int32_t> history(kVocab);
  std::iota(history.begin(), history.end(), 0);
  const Sampler sampler(cpu::select_kernel_set(), {}, kVocab);
  for (int row = 0; row < 20; ++row) {
    const Tensor alone(DType::kF32, {1, kVocab}), together(DType::kF32, {2, kVocab}), own(DType::kF32, {2, kVocab});
    for (int32_t i = 0; i < kVocab; ++i) {
      const float x = std::sin(static_cast<float>(i * 7 + row * 3)) * 5;
      alone.data_as<float>()[i] = x;
      for (const int32_t at : {i, kVocab + i}) together.data_as<float>()[at] = own.data_as<float>()[at] = x;
    }
    const SampleSpot spot{.params = &plain, .history = history};
    const std::vector<SampleSpot> both = {spot, {.params = &guided, .history = history}};
    const SampledToken want = sampler.sample(alone, {&spot, 1}).front();
    const SampledToken got = sampler.sample(together, both, {}, own).front();
    EXPECT_EQ(got.logprob, want.logprob) << "row " << row;
    EXPECT_EQ(got.best_model_logprob, want.best_model_logprob) << "row " << row;
  }
}

TEST(Sampler, B31_TheExcludedIdIsNeitherChosenNorCounted) {
  const SampledToken greedy = pick({1, 9, 1}, {.temperature = 0}, {}, 1);
  EXPECT_EQ(greedy.id, 0);
  EXPECT_NEAR(greedy.confidence, 0.5, 1e-6);
  EXPECT_NEAR(greedy.margin, 0, 1e-6);
  for (int64_t position = 0; position < 200; ++position) {
    EXPECT_NE(pick({1, 9, 1}, {.temperature = 2, .top_k = 2}, {.position = position}, 1).id, 1);
  }
}

TEST(Sampler, B27_EachDenoisingStepOfAPositionHasItsOwnRandomNumber) {
  const std::vector<float> logits(100, 0.0f);
  int different = 0;
  for (int32_t step = 0; step < 50; ++step) {
    different +=
        pick(logits, {}, {.position = 3, .step = step}).id != pick(logits, {}, {.position = 3, .step = step + 1}).id
            ? 1
            : 0;
    EXPECT_EQ(pick(logits, {}, {.position = 3, .step = step}).id, pick(logits, {}, {.position = 3, .step = step}).id);
  }
  EXPECT_GT(different, 40);
}

TEST(Sampler, B25_TheConfidenceIsThatOfTheModelWhateverTheTemperature) {
  const SampledToken t = pick({std::log(3.0f), 0}, {.temperature = 0.01f});
  EXPECT_EQ(t.id, 0);
  EXPECT_NEAR(t.confidence, 0.75, 1e-6);
}

// Dream's and SDAR's published loops rank by the distribution that they draw from.
TEST(Sampler, ScoresAreOfWhatTheFiltersLeaveWhereARequestAsksForThem) {
  const std::vector<float> row = {std::log(1.0f), std::log(4.0f), std::log(2.0f), std::log(3.0f)};
  const SampleSpot filtered{.scores_of = ScoresOf::kFiltered};
  const SampledToken one = pick(row, {.temperature = 0.7f, .top_k = 1}, filtered);
  EXPECT_EQ(one.id, 1);
  EXPECT_EQ(one.confidence, 1);
  EXPECT_EQ(one.margin, 1);
  EXPECT_EQ(one.entropy, 0);
  EXPECT_NEAR(one.logprob, std::log(0.4), 1e-6) << "a log probability is the model's";
  EXPECT_NEAR(one.best_logprob, std::log(0.4), 1e-6);
  const SampledToken two = pick(row, {.temperature = 1, .top_p = 0.6f}, filtered);
  EXPECT_NEAR(two.confidence, two.id == 1 ? 4 / 7.0 : 3 / 7.0, 1e-6);
  EXPECT_NEAR(two.margin, 1 / 7.0, 1e-6);
  EXPECT_NEAR(pick(row, {.temperature = 0.7f, .top_k = 1}).confidence, 0.4, 1e-6);
}

TEST(Sampler, WhatIsBannedIsNeverChosenAndHasNoShare) {
  const std::vector<float> logits = {std::log(1.0f), std::log(90.0f), std::log(4.0f), std::log(5.0f), 50};
  const std::vector<int32_t> banned = {1, 4, 99};  // the last one is beyond the vocabulary
  const SampledToken likely = pick(logits, {.temperature = 0}, {.banned_ids = banned});
  EXPECT_EQ(likely.id, 3);
  EXPECT_NEAR(likely.confidence, 0.5, 1e-6);
  EXPECT_NEAR(likely.margin, 0.1, 1e-6);
  EXPECT_NEAR(likely.entropy, -(0.1 * std::log(0.1) + 0.4 * std::log(0.4) + 0.5 * std::log(0.5)), 1e-6);
  std::map<int32_t, int> counts;
  const SamplingParams drawn{.temperature = 1, .repetition_penalty = 1.1f};
  const std::vector<int32_t> history = {1, 4};
  for (int64_t position = 0; position < 400; ++position) {
    ++counts[pick(logits, drawn, {.history = history, .position = position, .temperature = 0.5f, .banned_ids = banned})
                 .id];
  }
  EXPECT_EQ(counts.count(1) + counts.count(4), 0u);
  EXPECT_EQ(counts.size(), 3u);
}

// The inverse of an addition of 100 has few of a logit's bits left.
TEST(Sampler, LogProbabilitiesOfBiasedTokensAreTheModelsToTheBit) {
  const std::vector<float> row = {0.1f, -3.3f, 1.7f, 2.9f};
  const std::vector<int32_t> history = {0, 1, 1};
  TokenCounts counts;
  counts.update(history, 3, {});
  const SampledToken likely = pick(row, {.temperature = 0});
  for (const int32_t id : {0, 1}) {
    const SamplingParams params{
        .temperature = 0, .repetition_penalty = 1.7f, .presence_penalty = 0.3f, .logit_bias = {{id, 100}}};
    const SampledToken t = pick(row, params, {.history = history, .temperature = 0.3f, .output_counts = &counts});
    EXPECT_EQ(t.id, id);
    EXPECT_EQ(t.logprob, row[static_cast<size_t>(id)] - row[3] + likely.logprob);
    EXPECT_EQ(t.best_model_logprob, t.logprob);
    EXPECT_GT(t.confidence, 0.99f);
  }
}

TEST(Sampler, CountsLowerTokensOfTheOutputByHowOftenTheyOccur) {
  TokenCounts counts;
  counts.update(std::vector<int32_t>{1, 2, 2, 2}, 4, {});
  const SampleSpot spot{.output_counts = &counts};
  const std::vector<float> row = {0, 1, 1.8f};
  EXPECT_EQ(pick(row, {.temperature = 0}, spot).id, 2);
  EXPECT_EQ(pick(row, {.temperature = 0, .frequency_penalty = 0.5f}, spot).id, 1) << "1.8 - 1.5 and 1 - 0.5";
  EXPECT_EQ(pick(row, {.temperature = 0, .presence_penalty = 1.9f}, spot).id, 0);
  EXPECT_EQ(pick(row, {.temperature = 0, .presence_penalty = 1.5f, .frequency_penalty = -0.5f}, spot).id, 2);
}

TEST(Sampler, WhatIsNotAllowedIsNeverChosen) {
  std::vector<float> row(70);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i % 7);
  const std::vector<uint32_t> allowed = {1u << 9, 0, 1u << 3};  // 9 and 67
  const SampledToken t = pick(row, {.temperature = 0}, {.allowed_bits = allowed});
  EXPECT_EQ(t.id, 67);
  EXPECT_NEAR(t.confidence, std::exp(4.0) / (std::exp(4.0) + std::exp(2.0)), 1e-6);
  std::map<int32_t, int> counts;
  for (int64_t position = 0; position < 100; ++position) {
    ++counts[pick(row, {.temperature = 3}, {.position = position, .allowed_bits = allowed}).id];
  }
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts.count(9), 1u);
}

TEST(Sampler, SaysThatTheChangesLeaveNoToken) {
  const std::vector<int32_t> banned = {0, 1, 2};
  for (const float temperature : {0.0f, 1.0f}) {
    const SampledToken t = pick({1, 2, 3}, {.temperature = temperature}, {.banned_ids = banned});
    EXPECT_TRUE(t.none_left);
    EXPECT_FALSE(t.is_valid());
    EXPECT_TRUE(t.id >= 0 && t.id < 3);
    EXPECT_FALSE(pick({1, 2, std::nanf("")}, {.temperature = temperature}, {.banned_ids = banned}).none_left);
  }
  const Tensor padded(DType::kF32, {1, 4});  // tokens and a column that is none
  for (int64_t i = 0; i < 4; ++i) set_element(padded, i, 1);
  const SamplingParams greedy{.temperature = 0};
  const SampleSpot spot{.params = &greedy, .banned_ids = banned};
  EXPECT_TRUE(Sampler(cpu::select_kernel_set(), {}, 3).sample(padded, {&spot, 1}).front().none_left);
}

class RowsWithoutNumbers : public testing::Test {
 protected:
  static constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  static constexpr int32_t kWidth = 300;

  // Three rows; the logit of token 200 in the second is `logit`.
  static Tensor rows_with(float logit) {
    Tensor rows(DType::kF32, {3, kWidth});
    for (int64_t i = 0; i < rows.view().numel(); ++i) rows.data_as<float>()[i] = static_cast<float>(i * 37 % 101) / 25;
    rows.data_as<float>()[kWidth + 200] = logit;
    return rows;
  }
  static std::vector<SampleSpot> spots_of(const SamplingParams& params, ScoresOf scores_of) {
    std::vector<SampleSpot> spots;
    for (int64_t r = 0; r < 3; ++r) spots.push_back({.params = &params, .position = r, .scores_of = scores_of});
    return spots;
  }
  // Expects the tokens of the first and the third row to be `want`'s, and the second not to be valid.
  static void expect_the_second_alone(const std::vector<SampledToken>& got, const std::vector<SampledToken>& want) {
    ASSERT_EQ(got.size(), 3u);
    EXPECT_FALSE(got[1].is_valid());
    EXPECT_TRUE(got[1].id >= 0 && got[1].id < kWidth);
    for (const size_t r : {0, 2}) {
      EXPECT_TRUE(got[r].is_valid());
      EXPECT_EQ(got[r].id, want[r].id);
      EXPECT_EQ(got[r].logprob, want[r].logprob);
      EXPECT_EQ(got[r].confidence, want[r].confidence);
      EXPECT_EQ(got[r].entropy, want[r].entropy);
    }
  }
  const Sampler sampler_{cpu::select_kernel_set(), {}, kWidth};
};

TEST_F(RowsWithoutNumbers, ChangeNoTokenOfOthers) {
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{.temperature = 1},
        SamplingParams{.temperature = 0.7f, .top_k = 20, .top_p = 0.9f, .repetition_penalty = 1.3f}}) {
    for (const ScoresOf scores_of : {ScoresOf::kModel, ScoresOf::kFiltered}) {
      const std::vector<SampleSpot> spots = spots_of(params, scores_of);
      const std::vector<SampledToken> want = sampler_.sample(rows_with(1), spots);
      for (const float logit : {kNaN, kInf}) expect_the_second_alone(sampler_.sample(rows_with(logit), spots), want);
    }
  }
}

TEST_F(RowsWithoutNumbers, OfNothingElseHaveNoLikeliestTokens) {
  const SamplingParams greedy{.temperature = 0};
  const SampleSpot spot{.params = &greedy};
  for (const float logit : {kNaN, kInf, -kInf}) {
    Tensor row(DType::kF32, {1, kWidth});
    std::fill_n(row.data_as<float>(), kWidth, logit);
    const SampledToken read = sampler_.sample(row, {&spot, 1}).front();
    EXPECT_FALSE(read.is_valid());
    EXPECT_TRUE(sampler_.likeliest(row.view().select(0), read, 4).empty());
  }
}

// A guided token's log-probability is that of the model's own row, whose logits may all be numbers.
TEST_F(RowsWithoutNumbers, OfGuidanceShow) {
  const SamplingParams guided{.temperature = 0, .decoding = {.cfg_scale = 1}};
  const std::vector<SampleSpot> spots = spots_of(guided, ScoresOf::kModel);
  const Tensor own = rows_with(1), bad = rows_with(kNaN);
  const std::vector<SampledToken> want = sampler_.sample(rows_with(1), spots, {}, own);
  expect_the_second_alone(sampler_.sample(rows_with(kNaN), spots, {}, own), want);
  expect_the_second_alone(sampler_.sample(rows_with(1), spots, {}, bad), want);
}

TEST_F(RowsWithoutNumbers, OfADeviceShow) {
  const SamplingParams greedy{.temperature = 0};
  const std::vector<SampleSpot> spots = spots_of(greedy, ScoresOf::kModel);
  const auto described = [&](float log_sum) {
    ChosenRows rows{Tensor::zeros(DType::kI32, {3}), Tensor::zeros(DType::kF32, {3, 4}),
                    Tensor::zeros(DType::kI32, {3}), Tensor::zeros(DType::kF32, {3})};
    rows.stats.data_as<float>()[4 + 1] = log_sum;
    return Sampler::describe(rows, Sampler::orders_of(spots), spots);
  };
  expect_the_second_alone(described(kNaN), described(0));
}

TEST(SamplingParams, RefusesValuesOutOfRangeByName) {
  const auto refusal = [](const SamplingParams& p) {
    return testing_support::refusal_of([&p] { validate(p); }).sentence;
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.temperature = -1}), "temperature is -1, expected 0 to 100");
  EXPECT_EQ(refusal({.max_tokens = 0}), "max_tokens is 0, expected 1 to 1073741824");
  EXPECT_EQ(refusal({.top_p = 0}), "top_p is 0, expected 1e-06 to 1");
  EXPECT_EQ(refusal({.top_p = 1e-6f, .repetition_penalty = 1e-2f}), "") << "the bounds themselves";
  EXPECT_EQ(refusal({.temperature = std::nanf("")}), "temperature is nan, expected 0 to 100");
  EXPECT_EQ(refusal({.top_k = -1}), "top_k is -1, expected 0 to 1073741824");
  EXPECT_EQ(refusal({.decoding = {.add_block = 2}}), "add_block is 2, expected 0 to 1");
  EXPECT_EQ(refusal({.decoding = {.semi_complete = -1}}), "semi_complete is -1, expected 0 to 1");
  EXPECT_EQ(refusal({.decoding = {.cfg_scale = -0.5f}}), "cfg_scale is -0.5, expected 0 to 1000000");
  EXPECT_EQ(refusal({.decoding = {.cfg_scale = std::nanf("")}}), "cfg_scale is nan, expected 0 to 1000000");
  EXPECT_EQ(refusal({.decoding = {.cfg_scale = std::numeric_limits<float>::infinity()}}),
            "cfg_scale is inf, expected 0 to 1000000");
  EXPECT_EQ(refusal({.decoding = {.steps = 3}}), "steps is 3, expected none without the schedule 'reference'");
  using Schedule = DecodingParams::Schedule;
  EXPECT_EQ(refusal({.decoding = {.schedule = Schedule::kReference, .remask_threshold = 0.5f}}),
            "remask_threshold is 0.5, expected none with the schedule 'reference'");
  EXPECT_EQ(refusal({.stop = {""}}), "stop: a stop text is empty");
  EXPECT_EQ(refusal({.max_tokens = 4, .min_tokens = 4}), "");
  EXPECT_EQ(refusal({.max_tokens = 4, .min_tokens = 5}), "min_tokens is 5, expected 0 to 4");
  EXPECT_EQ(refusal({.min_tokens = -1}), "min_tokens is -1, expected 0 to 256");
  EXPECT_EQ(refusal({.presence_penalty = 2, .frequency_penalty = -2}), "");
  EXPECT_EQ(refusal({.presence_penalty = 2.5f}), "presence_penalty is 2.5, expected -2 to 2");
  EXPECT_EQ(refusal({.frequency_penalty = std::nanf("")}), "frequency_penalty is nan, expected -2 to 2");
  EXPECT_EQ(refusal({.top_logprobs = 129}), "top_logprobs is 129, expected 0 to 128");
  EXPECT_EQ(refusal({.prompt_logprobs = -1}), "prompt_logprobs is -1, expected 0 to 128");
}

TEST(SamplingParams, RefusesBiasesByTheirTokens) {
  const auto refusal = [](const std::vector<LogitBias>& biases) {
    return testing_support::refusal_of([&] { validate({.logit_bias = biases}); }).sentence;
  };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(refusal({{7, 100}, {3, -100}, {0, -kInf}, {4, 0}}), "");
  EXPECT_EQ(refusal({{7, 1}, {3, 1}, {7, 2}}), "logit_bias is given twice for token 7, expected once");
  EXPECT_EQ(refusal({{-2, 1}}), "logit_bias is for token -2, expected 0 or more");
  EXPECT_EQ(refusal({{7, 100.5f}}), "logit_bias is 100.5 for token 7, expected -100 to 100, or -inf");
  EXPECT_EQ(refusal({{7, kInf}}), "logit_bias is inf for token 7, expected -100 to 100, or -inf");
  EXPECT_EQ(refusal({{7, std::nanf("")}}), "logit_bias is nan for token 7, expected -100 to 100, or -inf");
}

// B13: `--accept leftmost --threshold 0.5` kept one token per pass and did not say why.
TEST(SamplingParams, ARuleByWhichNoTokenPassesAThresholdRefusesOne) {
  using TokenRule = DecodingParams::Rule;
  const auto refusal = [](const DecodingParams& d) {
    return testing_support::refusal_of([&d] { validate({.decoding = d}); }).sentence;
  };
  for (const TokenRule rule :
       {TokenRule::kConfidence, TokenRule::kMargin, TokenRule::kEntropy, TokenRule::kEntropyBound})
    EXPECT_EQ(refusal({.rule = rule, .threshold = 0.5f, .order_temperature = 2}), "");
  EXPECT_EQ(refusal({.rule = TokenRule::kLeftmost, .order_temperature = 2}), "");
  EXPECT_EQ(refusal({.rule = TokenRule::kRandom}), "");
  EXPECT_EQ(refusal({.rule = TokenRule::kLeftmost, .threshold = 0.5f}),
            "threshold is 0.5, expected none with the rule 'leftmost', by which no token passes one");
  EXPECT_EQ(refusal({.rule = TokenRule::kRandom, .threshold = 0.5f}),
            "threshold is 0.5, expected none with the rule 'random', by which no token passes one");
  EXPECT_EQ(refusal({.rule = TokenRule::kRandom, .order_temperature = 2}),
            "order_temperature is 2, expected 0 with the rule 'random'");
}

}  // namespace
}  // namespace headrace
