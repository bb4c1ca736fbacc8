// Frequencies of every rope type against values worked out by hand, and what is refused.
#include "headrace/layers/rotary_embedding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "support/refusal.h"

namespace headrace {
namespace {

double frequency(const RotaryEmbedding& rotary, int64_t i) { return element_as_double(rotary.inv_freq(), i); }

std::optional<ErrorCode> code_of(const RotaryConfig& config, int64_t head_dim = 16) {
  return testing_support::refusal_of([&] { RotaryEmbedding(config, head_dim); }).code;
}

TEST(RotaryEmbedding, DefaultIsThePowersOfTheta) {
  const RotaryEmbedding rotary({.theta = 10000}, 8);
  ASSERT_EQ(rotary.inv_freq().dim(0), 4);
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(frequency(rotary, i), std::pow(10.0, -static_cast<double>(i)), 1e-7);
  EXPECT_EQ(rotary.magnitude(), 1.0f);
}

TEST(RotaryEmbedding, PartialTakesItsExponentsFromTheRotatedPart) {
  const RotaryEmbedding rotary({.theta = 10000, .partial_rotary_factor = 0.25}, 32);
  ASSERT_EQ(rotary.inv_freq().dim(0), 4);
  EXPECT_NEAR(frequency(rotary, 1), 0.1, 1e-7);
}

TEST(RotaryEmbedding, LinearDividesEveryFrequency) {
  const RotaryEmbedding rotary({.type = "linear", .theta = 10000, .factor = 8}, 8);
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(frequency(rotary, i) * 8, std::pow(10.0, -static_cast<double>(i)), 1e-7);
}

// Wavelengths 6.3, 63, 628 and 6283 of an original context of 400, with borders at 100 and 400: the first two stay,
// the last two are divided.
TEST(RotaryEmbedding, Llama3KeepsShortWavesAndSlowsLongOnes) {
  const RotaryEmbedding rotary({.type = "llama3",
                                .theta = 10000,
                                .factor = 8,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_max_position = 400},
                               8);
  EXPECT_NEAR(frequency(rotary, 0), 1, 1e-7);
  EXPECT_NEAR(frequency(rotary, 1), 0.1, 1e-7);
  EXPECT_NEAR(frequency(rotary, 2), 0.01 / 8, 1e-8);
  EXPECT_NEAR(frequency(rotary, 3), 0.001 / 8, 1e-9);
}

// Between the borders, here a wavelength of 62.83 with an original context of 100, low 1 and high 4: s = 0.1972.
TEST(RotaryEmbedding, Llama3BlendsBetween) {
  const RotaryEmbedding rotary({.type = "llama3",
                                .theta = 10000,
                                .factor = 8,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4,
                                .original_max_position = 100},
                               8);
  const double s = (100 / 62.831853 - 1) / 3;
  EXPECT_NEAR(frequency(rotary, 1), (1 - s) * 0.1 / 8 + s * 0.1, 1e-7);
}

// A GGUF file holds what each frequency of Llama 3's scaling is divided by, and not its parameters.
TEST(RotaryEmbedding, DividesEachFrequencyByItsOwnNumber) {
  RotaryConfig config{.type = "divided", .theta = 10000, .divisors = {1, 1, 2, 8}};
  const RotaryEmbedding rotary(config, 8);
  for (int64_t i = 0; i < 4; ++i) {
    const double by = config.divisors[static_cast<size_t>(i)];
    EXPECT_NEAR(frequency(rotary, i) * by * std::pow(10.0, static_cast<double>(i)), 1, 1e-6);
  }
  config.divisors.pop_back();
  EXPECT_EQ(code_of(config, 8), ErrorCode::kModelFile);
}

// With D = 8, theta = 1e4 and an original context of 1000, c(32) = 0.70 and c(1) = 2.20: the ramp runs from 0 to 3.
TEST(RotaryEmbedding, YarnRampsAndMultiplies) {
  const RotaryEmbedding rotary({.type = "yarn", .theta = 10000, .factor = 4, .original_max_position = 1000}, 8);
  for (int64_t i = 0; i < 4; ++i) {
    const double w = std::pow(10.0, -static_cast<double>(i)), ramp = static_cast<double>(i) / 3;
    EXPECT_NEAR(frequency(rotary, i), w / 4 * ramp + w * (1 - ramp), 1e-7);
  }
  EXPECT_NEAR(rotary.magnitude(), 0.1 * std::log(4.0) + 1, 1e-6);
}

// Values of transformers 5.17 for heads of 16, theta 1e4, factor 4 and an original context of 128.
TEST(RotaryEmbedding, YarnWithoutTruncationRampsBetweenFractionsOfPairs) {
  const RotaryConfig config{
      .type = "yarn", .theta = 10000, .factor = 4, .original_max_position = 128, .ramp = RotaryConfig::Ramp::kExact};
  const RotaryEmbedding rotary(config, 16);
  const double expected[] = {1.0, 0.2256374806, 0.0427056700, 0.0079056947, 0.0025, 7.9056947e-4, 2.5e-4, 7.9056947e-5};
  for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(frequency(rotary, i), expected[i], 1e-6 * expected[i]) << i;
}

TEST(RotaryEmbedding, YarnTakesTheRatioOfTwoScalesWhereBothAreStated) {
  RotaryConfig config{.type = "yarn", .theta = 10000, .factor = 4, .original_max_position = 128, .mscale = 1};
  EXPECT_NEAR(RotaryEmbedding(config, 16).magnitude(), 1.138629436, 1e-6);  // one alone says nothing
  config.mscale_all_dim = 0.5;
  EXPECT_NEAR(RotaryEmbedding(config, 16).magnitude(), 1.064821625, 1e-6);
  config.mscale = -100;
  EXPECT_EQ(code_of(config), ErrorCode::kModelFile);
  config.attention_factor = 2;
  EXPECT_EQ(RotaryEmbedding(config, 16).magnitude(), 2);
}

// The ramp's ends change sides when the context is shorter than a turn: then no frequency changes.
TEST(RotaryEmbedding, YarnOfAContextOfOneTokenChangesNothing) {
  const RotaryEmbedding rotary({.type = "yarn", .theta = 10000, .factor = 4, .original_max_position = 1}, 32);
  for (int64_t i = 0; i < 16; ++i) EXPECT_NEAR(frequency(rotary, i), std::pow(1e4, -static_cast<double>(i) / 16), 1e-7);
}

TEST(RotaryEmbedding, YarnThatShortensIsNotMadeSmaller) {
  const RotaryEmbedding rotary({.type = "yarn", .theta = 10000, .factor = 0.5, .original_max_position = 1000}, 8);
  EXPECT_EQ(rotary.magnitude(), 1.0f);
}

TEST(RotaryEmbedding, ProportionalTurnsTheFirstPairsAloneAndDividesThemByTheFactor) {
  const RotaryConfig half{.type = "proportional", .theta = 10000, .partial_rotary_factor = 0.5};
  RotaryConfig slower = half;
  slower.factor = 4;
  for (const auto& [config, factor] : {std::pair(half, 1.0), std::pair(slower, 4.0)}) {
    const RotaryEmbedding rotary(config, 8);
    ASSERT_EQ(rotary.inv_freq().dim(0), 4);
    EXPECT_NEAR(frequency(rotary, 0), 1 / factor, 1e-7);
    EXPECT_NEAR(frequency(rotary, 1), 0.1 / factor, 1e-7);
    EXPECT_EQ(frequency(rotary, 2), 0);
    EXPECT_EQ(frequency(rotary, 3), 0);
  }
}

TEST(RotaryEmbedding, B26_ANumberThatTheTypeNeedsIsNeverGuessed) {
  const RotaryConfig llama3{.type = "llama3",
                            .theta = 1e4,
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_max_position = 64},
      yarn{.type = "yarn", .theta = 1e4, .factor = 4, .original_max_position = 64};
  const auto refused = [](RotaryConfig config, void (*change)(RotaryConfig&)) {
    EXPECT_EQ(code_of(config), std::nullopt);
    change(config);
    EXPECT_EQ(code_of(config), ErrorCode::kModelFile);
  };
  refused({.type = "linear", .theta = 1e4, .factor = 2}, [](RotaryConfig& c) { c.factor = {}; });
  refused(llama3, [](RotaryConfig& c) { c.factor = {}; });
  refused(llama3, [](RotaryConfig& c) { c.low_freq_factor = {}; });
  refused(llama3, [](RotaryConfig& c) { c.high_freq_factor = {}; });
  refused(yarn, [](RotaryConfig& c) { c.factor = {}; });
  refused(yarn, [](RotaryConfig& c) { c.attention_factor = 0; });
  refused(yarn, [](RotaryConfig& c) { c.beta_slow = 0; });
  refused(yarn, [](RotaryConfig& c) { std::swap(c.beta_slow, c.beta_fast); });
}

// Of 32 elements 8 turn: 4 pairs. The plain rotation of text is all that is done with them.
TEST(RotaryEmbedding, SectionsAreThePairsThatTurnOrRefused) {
  const auto with = [](RotarySections sections) {
    return RotaryConfig{.theta = 1e7, .partial_rotary_factor = 0.25, .sections = sections};
  };
  EXPECT_EQ(code_of(with({2, 1, 1, RotarySections::Layout::kInterleaved}), 32), std::nullopt);
  const auto refused = testing_support::refusal_of([&] { RotaryEmbedding(with({2, 1, 2}), 32); });
  EXPECT_EQ(refused.code, ErrorCode::kModelFile);
  EXPECT_EQ(refused.sentence,
            "config.json: mrope_section is 2, 1 and 2, expected counts that add up to 4 pairs of rotated elements");
}

TEST(RotaryEmbedding, RefusesWhatItCannotRotate) {
  EXPECT_EQ(code_of({}), ErrorCode::kModelFile);  // no theta
  EXPECT_EQ(code_of({.type = "longrope", .theta = 1e4}), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of({.theta = 1e4, .partial_rotary_factor = 1.5}), ErrorCode::kModelFile);
  EXPECT_EQ(code_of({.theta = 1e4, .partial_rotary_factor = 1e300}), ErrorCode::kModelFile);
  EXPECT_EQ(code_of({.theta = 1e4}, 15), ErrorCode::kModelFile);
  EXPECT_EQ(code_of({.type = "linear", .theta = 1e4, .factor = 0}), ErrorCode::kModelFile);
  EXPECT_EQ(code_of({.type = "yarn", .theta = 1e4, .factor = 4}), ErrorCode::kModelFile);
  EXPECT_EQ(code_of({.type = "llama3",
                     .theta = 1e4,
                     .factor = 4,
                     .low_freq_factor = 4,
                     .high_freq_factor = 4,
                     .original_max_position = 64}),
            ErrorCode::kModelFile);
}

}  // namespace
}  // namespace headrace
