#include "headrace/serve/batch_line.h"

#include <gtest/gtest.h>

#include <utility>

#include "headrace/serve/json_body.h"
#include "headrace/weights/config_file.h"
#include "support/refusal.h"

namespace headrace {
namespace {

constexpr std::string_view kLine =
    R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}})";

TEST(BatchLine, HasACustomIdAndABody) {
  const BatchLine line(kLine);
  EXPECT_EQ(line.custom_id(), "a");
  EXPECT_EQ(line.body().members().front().text(), "x");
}

TEST(BatchLine, SaysWhatIsWrongWithIt) {
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"[]", "the line is an array, expected a JSON object"},
      {R"({"method": "POST"})", "custom_id is missing, expected a string"},
      {R"({"custom_id": 7})", "custom_id is 7, expected a string"},
      {R"({"custom_id": "a"})", "method is missing, expected POST"},
      {R"({"custom_id": "a", "method": "GET"})", "method is 'GET', expected POST"},
      {R"({"custom_id": "a", "method": "POST"})", "url is missing, expected /v1/completions"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/embeddings"})",
       "url is '/v1/embeddings', expected /v1/completions or /v1/chat/completions"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"})", "body is missing, expected an object"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/completions"})", "body is missing, expected an object"},
      {R"({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": "x"})",
       "body is a string, expected an object"},
      {R"({"custom_id": "a", "custom_id": "b"})", "custom_id occurs twice, expected once"},
  };
  for (const auto& [text, sentence] : kCases) {
    EXPECT_EQ(testing_support::refusal_of([text] { static_cast<void>(BatchLine(text).body()); }).sentence, sentence);
  }
}

TEST(BatchLine, HasItsIdInSpiteOfOtherFaults) {
  EXPECT_EQ(BatchLine(R"({"custom_id": "a", "url": 3})").custom_id(), "a");
}

TEST(BatchResult, IsALineOfOpenAIsFormat) {
  const std::string text = json_of({.line = 3, .custom_id = "a\"b", .status = 200, .body = R"({"object": "x"})"});
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const JsonValue result = JsonValue::parse(text, "result");
  EXPECT_EQ(result.at("custom_id").as_string(), "a\"b");
  EXPECT_EQ(result.at("response").at("status_code").as_int(), 200);
  EXPECT_EQ(result.at("response").at("body").at("object").as_string(), "x");
  EXPECT_EQ(result.at("id").as_string(), "batch_req_" + result.at("response").at("request_id").as_string());
  EXPECT_EQ(result.find("error"), nullptr);
}

TEST(BatchResult, HasTheSameIdsInEveryRun) {
  EXPECT_EQ(batch_line_id(1, "a"), "45540418180aba49");
  EXPECT_NE(batch_line_id(1, "a"), batch_line_id(2, "a"));
  EXPECT_NE(batch_line_id(1, "a"), batch_line_id(1, "b"));
}

TEST(BatchResult, OfALineWithoutAnIdHasNone) {
  EXPECT_NE(json_of({.line = 1, .custom_id = {}, .status = 400, .body = "{}"}).find(R"("custom_id": null)"),
            std::string::npos);
}

}  // namespace
}  // namespace headrace
