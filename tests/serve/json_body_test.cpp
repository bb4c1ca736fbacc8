#include "headrace/serve/json_body.h"

#include <gtest/gtest.h>

#include <utility>

#include "support/refusal.h"

namespace headrace {
namespace {

std::string refusal(std::string_view text) {
  return testing_support::refusal_of([text] { JsonBody(text, "the body"); }).sentence;
}

JsonNode member(const JsonBody& body) { return body.root().members().front(); }

TEST(JsonBody, RefusesWhatIsNoObject) {
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"null", "the body is null, expected a JSON object"},
      {"[]", "the body is an array, expected a JSON object"},
      {R"("x")", "the body is a string, expected a JSON object"},
      {"17", "the body is 17, expected a JSON object"},
  };
  for (const auto& [text, sentence] : kCases) EXPECT_EQ(refusal(text), sentence) << text;
}

TEST(JsonBody, RefusesWhatIsNoJson) {
  for (const std::string_view text : {"", "{", "{}}", "{} {}", R"({"a": 1,})", R"({"a": 1} // c)", "\xef\xbb\xbf{}",
                                      "{\"a\": \"\xff\"}", "{'a': 1}"}) {
    EXPECT_TRUE(refusal(text).starts_with("the body is not valid JSON: ")) << text << ": " << refusal(text);
  }
}

TEST(JsonBody, RefusesDeepNesting) {
  const auto nested = [](size_t depth) {
    return R"({"a": )" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
  };
  EXPECT_EQ(refusal(nested(63)), "");
  EXPECT_EQ(refusal(nested(100000)), "the body has nesting deeper than 64");
}

TEST(JsonBody, ReadsHalvesOfSurrogatePairsAsReplacementCharacters) {
  EXPECT_EQ(member(JsonBody(R"({"a": "x\ud800y\udc00z"})", "b")).text(), "x\xef\xbf\xbdy\xef\xbf\xbdz");
  EXPECT_EQ(member(JsonBody(R"({"a": "\\ud800 \ud83d\ude00 \ud800"})", "b")).text(),
            "\\ud800 \xf0\x9f\x98\x80 \xef\xbf\xbd");
}

TEST(JsonBody, RefusesAMemberThatOccursTwice) {
  const JsonBody body(R"({"n": 1, "n": 9})", "the body");
  EXPECT_EQ(testing_support::refusal_of([&] { body.root().members(); }).sentence, "n occurs twice, expected once");
}

TEST(JsonNode, NamesWhatItFound) {
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"0", "n is 0, expected an integer from 1 to 9"},
      {"10", "n is 10, expected an integer from 1 to 9"},
      {"1.5", "n is 1.5, expected an integer from 1 to 9"},
      {"\"3\"", "n is a string, expected an integer from 1 to 9"},
      {"true", "n is true, expected an integer from 1 to 9"},
      {"[1]", "n is an array, expected an integer from 1 to 9"},
      {"{}", "n is an object, expected an integer from 1 to 9"},
      {"18446744073709551615", "n is 18446744073709551615, expected an integer from 1 to 9"},
      {"99999999999999999999999", "n is 99999999999999999999999, expected an integer from 1 to 9"},
      {"NaN", "n is NaN, expected an integer from 1 to 9"},
      {"-Infinity", "n is -Infinity, expected an integer from 1 to 9"},
  };
  for (const auto& [value, sentence] : kCases) {
    const JsonBody body(str(R"({"n": )", value, "}"), "the body");
    EXPECT_EQ(testing_support::refusal_of([&] { member(body).integer(1, 9); }).sentence, sentence);
  }
}

TEST(JsonNode, ReadsAnIntegerAsANumber) { EXPECT_EQ(member(JsonBody(R"({"t": 2})", "b")).number(0, 2), 2); }

TEST(JsonNode, NamesTheItemOfAList) {
  const JsonBody body(R"({"ids": [1, 2, -1]})", "the body");
  EXPECT_EQ(testing_support::refusal_of([&] { member(body).integers(0, 9); }).sentence,
            "ids[2] is -1, expected an integer from 0 to 9");
}

}  // namespace
}  // namespace headrace
