// What a pass of a family's published loop keeps, and by which scores.
#include "headrace/decoding/reference_loop.h"

#include <gtest/gtest.h>

#include <string>

namespace headrace {
namespace {

using Schedule = DecodingParams::Schedule;

// "model" or "filtered", of a request that asks for nothing but this.
std::string scores(LoopScores of, SamplingParams params, Schedule schedule = Schedule::kReference) {
  params.decoding.schedule = schedule;
  const DiffusionInfo info{.reference = {.scores = of}};
  return scores_of(params, info) == ScoresOf::kModel ? "model" : "filtered";
}

TEST(ReferenceLoop, ItsScoresAreOfWhatItDrawsFromWhereThatIsNotTheModels) {
  const auto draws = [](const SamplingParams& p) { return scores(LoopScores::kOfDraws, p); };
  EXPECT_EQ(draws({.temperature = 1}), "model") << "SDAR's own default";
  EXPECT_EQ(draws({.temperature = 0.7f}), "filtered");
  EXPECT_EQ(draws({.temperature = 1, .top_k = 5}), "filtered");
  EXPECT_EQ(draws({.temperature = 1, .top_p = 0.9f}), "filtered");
  EXPECT_EQ(draws({.temperature = 1, .min_p = 0.1f}), "filtered");
  EXPECT_EQ(draws({.temperature = 0, .top_p = 0.95f}), "model") << "Fast-dLLM v2's own default";
}

TEST(ReferenceLoop, DreamsFiltersStandWithoutATemperatureToo) {
  const auto filters = [](const SamplingParams& p) { return scores(LoopScores::kOfFilters, p); };
  EXPECT_EQ(filters({.temperature = 0}), "model");
  EXPECT_EQ(filters({.temperature = 0, .top_p = 0.95f}), "filtered");
  EXPECT_EQ(filters({.temperature = 0.2f}), "filtered");
}

TEST(ReferenceLoop, LLaDAsScoresAreTheModelsAndSoAreThoseOfOtherSchedules) {
  EXPECT_EQ(scores(LoopScores::kOfModel, {.temperature = 0.7f, .top_k = 5}), "model");
  EXPECT_EQ(scores(LoopScores::kOfDraws, {.temperature = 0.7f, .top_k = 5}, Schedule::kThreshold), "model");
}

}  // namespace
}  // namespace headrace
