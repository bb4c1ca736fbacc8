#include "apps/random_prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bench/random_inputs.h"

namespace headrace {
namespace {

TEST(RandomPrompt, HasManyTokensOfTheVocabularyAndFollowsTheSeed) {
  const ModelInfo info{.vocab_size = 1000};
  const std::vector<int32_t> prompt = app::random_prompt(info, 4096, 7);
  const std::set<int32_t> distinct(prompt.begin(), prompt.end());
  EXPECT_EQ(prompt.size(), 4096U);
  EXPECT_GT(distinct.size(), 950U);
  EXPECT_GE(*distinct.begin(), 0);
  EXPECT_LT(*distinct.rbegin(), 1000);
  EXPECT_EQ(app::random_prompt(info, 4096, 7), prompt);
  EXPECT_NE(app::random_prompt(info, 4096, 8), prompt);
}

// A strategy refuses a prompt with its mask token.
TEST(RandomPrompt, LacksTheMaskToken) {
  for (const int32_t mask : {0, 5, 9}) {
    const ModelInfo info{.vocab_size = 10, .diffusion = DiffusionInfo{.mask_token_id = mask}};
    const std::vector<int32_t> prompt = app::random_prompt(info, 4096, 7);
    const std::set<int32_t> distinct(prompt.begin(), prompt.end());
    EXPECT_EQ(distinct.count(mask), 0U);
    EXPECT_EQ(distinct.size(), 9U);
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), 10);
  }
}

TEST(NormalValues, HaveTheMeanAndDeviationThatAreAskedFor) {
  const Tensor values = bench::normal_values(DType::kF32, {1 << 20}, -6, 2);
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < values.numel(); ++i) {
    const double x = element_as_double(values, i);
    sum += x, squares += x * x;
  }
  const double mean = sum / static_cast<double>(values.numel());
  EXPECT_NEAR(mean, -6, 0.02);
  EXPECT_NEAR(squares / static_cast<double>(values.numel()) - mean * mean, 4, 0.05);
}

TEST(NormalValues, RepeatAfterThePeriodAndRowsDiffer) {
  constexpr int64_t kWidth = 1024;
  const Tensor values = bench::normal_values(DType::kF32, {2 * bench::kNormalPeriod / kWidth + 1, kWidth});
  const auto* const x = values.data_as<float>();
  EXPECT_TRUE(std::equal(x, x + bench::kNormalPeriod, x + bench::kNormalPeriod));
  for (int64_t row = 1; row < values.dim(0); ++row) {
    ASSERT_FALSE(std::equal(x, x + kWidth, x + row * kWidth)) << "row " << row;
  }
}

TEST(NormalValues, FollowTheSeed) {
  const Tensor first = bench::normal_values(DType::kF32, {64}), again = bench::normal_values(DType::kF32, {64}),
               other = bench::normal_values(DType::kF32, {64}, 0, 1, 2);
  const auto* const x = first.data_as<float>();
  EXPECT_TRUE(std::equal(x, x + 64, again.data_as<float>()));
  EXPECT_FALSE(std::equal(x, x + 64, other.data_as<float>()));
}

}  // namespace
}  // namespace headrace
