#include "headrace/llm/sampling_defaults.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/refusal.h"

namespace headrace {
namespace {

const std::filesystem::path kModel = std::filesystem::path(testing::TempDir()) / "headrace_sampling_defaults";

SamplingParams defaults_of(const std::string& json, const LogCallback& log = {}) {
  std::filesystem::create_directories(kModel);
  std::ofstream(kModel / "generation_config.json") << json;
  return sampling_defaults({.directory = kModel, .generation = read_json_file(kModel / "generation_config.json")}, log);
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
  EXPECT_EQ(sampling_defaults({}, {}).temperature, 1);
}

TEST(SamplingDefaults, AModelThatDoesNotSampleIsGreedy) {
  EXPECT_EQ(defaults_of(R"({"do_sample": false, "temperature": 0.6})").temperature, 0);
}

TEST(SamplingDefaults, MinusOneAndZeroMeanWhatVllmAndTransformersHave) {
  const auto fails = [](LogLevel, std::string_view text) { FAIL() << text; };
  EXPECT_EQ(defaults_of(R"({"top_k": -1})", fails).top_k, 0) << "all tokens";
  EXPECT_EQ(defaults_of(R"({"top_k": 0})", fails).top_k, 0);
  const float least = defaults_of(R"({"top_p": 0})", fails).top_p;
  EXPECT_GT(least, 0);
  EXPECT_LT(least, 1.0f / 300000) << "the most likely token of any vocabulary";
}

// Requests may state another one: a default that cannot be must not stop them.
TEST(SamplingDefaults, WhatCannotBeIsIgnoredWithAWarningThatNamesIt) {
  const std::string file = (kModel / "generation_config.json").string();
  const auto warnings_of = [](const char* json) {
    std::vector<std::string> warnings;
    const SamplingParams p = defaults_of(json, [&warnings](LogLevel level, std::string_view text) {
      EXPECT_EQ(level, LogLevel::kWarning);
      warnings.emplace_back(text);
    });
    EXPECT_EQ(p.min_p, 0.25f) << json << ": the others are read";
    EXPECT_EQ(p.top_p, 1) << json;
    EXPECT_EQ(p.top_k, 0) << json;
    EXPECT_EQ(p.temperature, 1) << json;
    EXPECT_EQ(p.repetition_penalty, 1) << json;
    return warnings;
  };
  const auto one = [&](const std::string& what) {
    return std::vector<std::string>{file + ": " + what + "; this default is ignored"};
  };
  EXPECT_EQ(warnings_of(R"({"temperature": "hot", "min_p": 0.25})"), one("temperature is a string, expected a number"));
  EXPECT_EQ(warnings_of(R"({"top_p": 1.5, "min_p": 0.25})"), one("top_p is 1.5, expected 1e-06 to 1"));
  EXPECT_EQ(warnings_of(R"({"top_p": Infinity, "min_p": 0.25})"), one("top_p is Infinity, expected a finite number"));
  EXPECT_EQ(warnings_of(R"({"top_k": -2, "min_p": 0.25})"), one("top_k is -2, expected -1 to 1073741824"));
  EXPECT_EQ(warnings_of(R"({"repetition_penalty": 0, "min_p": 0.25})"),
            one("repetition_penalty is 0, expected 0.01 to 100"));
  EXPECT_EQ(warnings_of(R"({"temperature": -1, "top_p": 2, "do_sample": 0, "min_p": 0.25})").size(), 3u);
  EXPECT_EQ(testing_support::refusal_of([] { defaults_of("[1"); }).code, ErrorCode::kModelFile);
}

}  // namespace
}  // namespace headrace
