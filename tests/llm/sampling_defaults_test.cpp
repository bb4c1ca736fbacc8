#include "headrace/llm/sampling_defaults.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/refusal.h"

namespace headrace {
namespace {

const std::filesystem::path kModel = std::filesystem::path(testing::TempDir()) / "headrace_sampling_defaults";

SamplingParams defaults_of(const std::string& json) {
  std::filesystem::create_directories(kModel);
  std::ofstream(kModel / "generation_config.json") << json;
  return sampling_defaults(kModel);
}

TEST(SamplingDefaults, EveryFieldIsRead) {
  const SamplingParams p = defaults_of(
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05})");
  EXPECT_FLOAT_EQ(p.temperature, 0.6f);
  EXPECT_EQ(p.top_k, 20);
  EXPECT_FLOAT_EQ(p.top_p, 0.95f);
  EXPECT_FLOAT_EQ(p.min_p, 0.1f);
  EXPECT_FLOAT_EQ(p.repetition_penalty, 1.05f);
}

TEST(SamplingDefaults, WhatIsNotThereOrNullIsAsBefore) {
  for (const char* json : {R"({"eos_token_id": 3})", R"({"temperature": null, "top_k": null, "do_sample": null})"}) {
    const SamplingParams p = defaults_of(json);
    EXPECT_EQ(p.temperature, 1);
    EXPECT_EQ(p.top_k, 0);
    EXPECT_EQ(p.top_p, 1);
  }
  EXPECT_EQ(sampling_defaults("/nonexistent").temperature, 1);
}

TEST(SamplingDefaults, AModelThatDoesNotSampleIsGreedy) {
  EXPECT_EQ(defaults_of(R"({"do_sample": false, "temperature": 0.6})").temperature, 0);
}

TEST(SamplingDefaults, WhatCannotBeIsTheFilesFault) {
  const auto refused = [](const char* json) { return testing_support::refusal_of([json] { defaults_of(json); }); };
  const std::string file = (kModel / "generation_config.json").string();
  EXPECT_EQ(refused(R"({"temperature": "hot"})").sentence, file + ": temperature is a string, expected a number");
  EXPECT_EQ(refused(R"({"top_p": 1.5})").sentence, file + ": top_p is 1.5, expected 1e-06 to 1");
  EXPECT_EQ(refused(R"({"top_p": 1.5})").code, ErrorCode::kModelFile);
}

}  // namespace
}  // namespace headrace
