#include "headrace/serve/completion_response.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "headrace/serve/json_body.h"
#include "headrace/weights/config_file.h"
#include "support/refusal.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

// Ids of the tiny tokenizer: bytes are 0 to 255, "he" is 256, "ll" 257, "hello" 259, " w" 260, "<|end|>" 300.
class CompletionResponse : public testing::Test {
 protected:
  CompletionCollector collector(std::string_view body) const {
    CompletionRequest request = completion_request(JsonBody(body, "b").root(), {});
    std::vector<std::vector<int32_t>> prompts;
    for (GenerationRequest& one : generation_requests(request, tokenizer_, 100)) prompts.push_back(one.prompt_ids);
    return {std::move(request), std::move(prompts), tokenizer_};
  }
  static StepOutput token(int32_t id, std::optional<FinishReason> reason = {}, float logprob = -1) {
    StepOutput output{.finish_reason = reason, .num_forwards = 1};
    output.token.id = id;
    output.token.logprob = logprob;
    return output;
  }
  static JsonValue body_of(const CompletionCollector& c) {
    return JsonValue::parse(c.json({.id = "cmpl-1", .created = 7, .model = "m\"", .shows_cached_tokens = false}), "r");
  }
  static JsonValue choice_of(const CompletionCollector& c) { return body_of(c).at("choices").as_array().front(); }

  const Tokenizer tokenizer_ = Tokenizer::from_json(TinyTokenizer().json());
};

const auto kLength = FinishReason::kLength, kStop = FinishReason::kStop;
using Then = CompletionCollector::Then;

TEST_F(CompletionResponse, IsATextCompletion) {
  CompletionCollector c = collector(R"({"prompt": "he"})");
  EXPECT_FALSE(c.done());
  EXPECT_EQ(c.push(0, 0, std::vector{token(259), token(260, kLength)}), Then::kGoOn);
  EXPECT_TRUE(c.done());
  EXPECT_EQ(c.json({.id = "cmpl-1", .created = 7, .model = "m"}),
            R"({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", "choices": [{"index": 0, )"
            R"("text": "hello w", "logprobs": null, "finish_reason": "length"}], "usage": {"prompt_tokens": 1, )"
            R"("completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}})");
}

TEST_F(CompletionResponse, NumbersChoicesByPromptThenByChoice) {
  CompletionCollector c = collector(R"({"prompt": ["he", "hello"], "n": 2})");
  using Token = std::array<int32_t, 3>;
  for (const auto& [prompt, choice, id] : {Token{1, 1, 'd'}, {0, 1, 'b'}, {1, 0, 'c'}, {0, 0, 'a'}}) {
    EXPECT_FALSE(c.done());
    c.push(prompt, choice, std::vector{token(id, kLength)});
  }
  EXPECT_TRUE(c.done());
  std::string texts;
  const JsonValue body = body_of(c);
  for (const JsonValue& choice : body.at("choices").as_array()) {
    EXPECT_EQ(choice.at("index").as_int(), std::ssize(texts));
    texts += choice.at("text").as_string();
  }
  EXPECT_EQ(texts, "abcd");
  EXPECT_EQ(c.usage().prompt_tokens, 2) << "each prompt counts once";
  EXPECT_EQ(c.usage().completion_tokens, 4);
}

TEST_F(CompletionResponse, AStopTextEndsAChoiceThatTheCallerAborts) {
  CompletionCollector c = collector(R"({"prompt": "he", "stop": "ow"})");
  EXPECT_EQ(c.push(0, 0, std::vector{token('x'), token('o')}), Then::kGoOn);
  EXPECT_EQ(c.push(0, 0, std::vector{token('w'), token('z')}), Then::kAbort);
  EXPECT_TRUE(c.done());
  StepOutput aborted{.finish_reason = FinishReason::kAborted};
  EXPECT_EQ(c.push(0, 0, std::vector{aborted}), Then::kGoOn) << "what is behind its end is ignored";
  EXPECT_EQ(choice_of(c).at("text").as_string(), "x");
  EXPECT_EQ(choice_of(c).at("finish_reason").as_string(), "stop");
}

TEST_F(CompletionResponse, AStopTextInTheLastTokenNeedsNoAbort) {
  CompletionCollector c = collector(R"({"prompt": "he", "stop": "w"})");
  EXPECT_EQ(c.push(0, 0, std::vector{token('w', kLength)}), Then::kGoOn);
  EXPECT_EQ(choice_of(c).at("finish_reason").as_string(), "stop");
}

TEST_F(CompletionResponse, ShowsLogProbabilitiesOfEachTokenAndItsRivals) {
  CompletionCollector c = collector(R"({"prompt": "he", "logprobs": 2})");
  StepOutput first = token(259, {}, -0.25f), last = token(300, kStop, -2.5f);
  first.top = {{259, -0.3f}, {'a', -2}, {'b', -3}};
  last.top = {{'a', -1}, {0xe2, -std::numeric_limits<float>::infinity()}};
  c.push(0, 0, std::vector{first, last});
  const std::string json = c.json({});
  EXPECT_NE(
      json.find(R"("text": "hello", "logprobs": {"tokens": ["hello", "<|end|>"], "token_logprobs": [-0.25, -2.5], )"
                R"("top_logprobs": [{"hello": -0.25, "a": -2}, {"a": -1, "�": -9999, "<|end|>": -2.5}], )"
                R"("text_offset": [0, 5]}, "finish_reason": "stop")"),
      std::string::npos)
      << json;
}

TEST_F(CompletionResponse, OfTokensWithOneTextShowsTheLikelier) {
  CompletionCollector c = collector(R"({"prompt": "he", "logprobs": 2})");
  StepOutput output = token('a', kLength, -1);
  output.top = {{0xe2, -0.5f}, {0xe3, -0.75f}};  // both a part of a character
  c.push(0, 0, std::vector{output});
  EXPECT_NE(c.json({}).find(R"("top_logprobs": [{"�": -0.5, "a": -1}])"), std::string::npos) << c.json({});
}

TEST_F(CompletionResponse, AnEchoBeginsWithThePrompt) {
  CompletionCollector c = collector(R"({"prompt": "he w", "echo": true, "logprobs": 1, "max_tokens": 1})");
  StepOutput output = token(259, kLength, -3);
  output.top = {{'x', -0.5f}};
  output.prompt_logprobs = {{{260, -1.5f}, {{'y', -0.125f}, {'z', -0.25f}}}};
  c.push(0, 0, std::vector{output});
  const std::string json = c.json({});
  EXPECT_NE(json.find(R"("text": "he whello", "logprobs": {"tokens": ["he", " w", "hello"], )"
                      R"("token_logprobs": [null, -1.5, -3], "top_logprobs": [null, {"y": -0.125, " w": -1.5}, )"
                      R"({"x": -0.5, "hello": -3}], "text_offset": [0, 2, 4]})"),
            std::string::npos)
      << json;
}

TEST_F(CompletionResponse, AnEchoOfNoTokensHasThePromptAlone) {
  CompletionCollector c = collector(R"({"prompt": [256, 260], "echo": true, "max_tokens": 0})");
  c.push(0, 0, std::vector{token(259, kLength)});
  EXPECT_EQ(choice_of(c).at("text").as_string(), "he w");
  EXPECT_EQ(choice_of(c).at("finish_reason").as_string(), "length");
  EXPECT_EQ(c.usage().completion_tokens, 0);
}

TEST_F(CompletionResponse, HasVllmsLogProbabilitiesOfThePrompt) {
  CompletionCollector c = collector(R"({"prompt": "he w", "prompt_logprobs": 1, "n": 2})");
  StepOutput output = token('a', kLength);
  output.prompt_logprobs = {{{260, -1.5f}, {{'y', -0.125f}, {'z', -0.25f}}}};
  c.push(0, 0, std::vector{output});
  c.push(0, 1, std::vector{token('b', kLength)});
  const std::string expected =
      R"("prompt_logprobs": [null, {"260": {"logprob": -1.5, "decoded_token": " w"}, "121": {"logprob": -0.125, "decoded_token": "y"}}])";
  const std::string json = c.json({});
  const size_t first = json.find(expected);
  ASSERT_NE(first, std::string::npos) << json;
  EXPECT_NE(json.find(expected, first + 1), std::string::npos) << "each choice of the prompt has them";
}

TEST_F(CompletionResponse, ShowsSpecialTokensIfAsked) {
  for (const auto& [skip, text] : {std::pair{"true", "ab"}, {"false", "a<|end|>b"}}) {
    CompletionCollector c = collector(str(R"({"prompt": "he", "skip_special_tokens": )", skip, "}"));
    c.push(0, 0, std::vector{token('a'), token(300), token('b', kLength)});
    EXPECT_EQ(choice_of(c).at("text").as_string(), text);
  }
}

TEST_F(CompletionResponse, StopTextsSeeShownSpecialTokensOnce) {
  CompletionCollector c = collector(R"({"prompt": "he", "skip_special_tokens": false, "stop": "<|end|><|end|>"})");
  EXPECT_EQ(c.push(0, 0, std::vector{token('a'), token(300), token('b')}), Then::kGoOn);
  EXPECT_EQ(c.push(0, 0, std::vector{token(300), token(300)}), Then::kAbort);
  EXPECT_EQ(choice_of(c).at("text").as_string(), "a<|end|>b");
}

TEST_F(CompletionResponse, ThrowsTheErrorOfAFailedChoice) {
  CompletionCollector c = collector(R"({"prompt": "he"})");
  StepOutput failed{.finish_reason = FinishReason::kError};
  failed.error = Error(ErrorCode::kModelFile, "no numbers");
  EXPECT_EQ(testing_support::refusal_of([&] { c.push(0, 0, std::vector{failed}); }).sentence, "no numbers");
}

TEST_F(CompletionResponse, CountsCachedTokens) {
  CompletionCollector c = collector(R"({"prompt": ["he", "ll"]})");
  for (const int32_t prompt : {0, 1}) {
    StepOutput output = token('a', kLength);
    output.num_reused = 1;
    c.push(prompt, 0, std::vector{output});
  }
  EXPECT_EQ(c.usage().cached_tokens, 2);
  EXPECT_EQ(body_of(c).at("usage").find("prompt_tokens_details"), nullptr) << "only if the head asks for them";
}

}  // namespace
}  // namespace headrace
