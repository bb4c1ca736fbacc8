#include "headrace/serve/completion_response.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "headrace/serve/json_body.h"
#include "headrace/serve/prompt_size.h"
#include "headrace/weights/config_file.h"
#include "support/refusal.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

// Ids of the tiny tokenizer: bytes are 0 to 255, "he" is 256, "ll" 257, "hello" 259, " w" 260, "<|end|>" 300.
class CompletionResponseTest : public testing::Test {
 protected:
  // A response that tests push outputs to.
  struct Pushed : CompletionResponse {
    using CompletionResponse::CompletionResponse;
    Then push(int32_t prompt, int32_t choice, std::vector<StepOutput> outputs) {
      return Response::push(prompt, {.choice = choice, .outputs = std::move(outputs)});
    }
    std::string json() const { return CompletionResponse::json({}); }
    std::string news(int32_t prompt = 0, int32_t choice = 0) {
      std::string out;
      append_news(prompt, choice, out);
      return out;
    }
  };
  Pushed response(std::string_view body, ResponseInfo head = {.id = "cmpl-1", .created = 7, .model = "m\""}) const {
    CompletionRequest request = completion_request(JsonBody(body, "b").root(), {});
    std::vector<std::vector<int32_t>> prompts;
    for (GenerationRequest& one : generation_requests(request, tokenizer_, PromptSize(tokenizer_, 100)))
      prompts.push_back(one.prompt_ids);
    return {std::move(request), std::move(head), std::move(prompts), tokenizer_};
  }
  static StepOutput token(int32_t id, std::optional<FinishReason> reason = {}, float logprob = -1) {
    StepOutput output{.finish_reason = reason, .num_forwards = 1};
    output.token.id = id;
    output.token.logprob = logprob;
    return output;
  }
  static JsonValue body_of(const Pushed& c) { return JsonValue::parse(c.json(), "r"); }
  static JsonValue choice_of(const Pushed& c) { return body_of(c).at("choices").as_array().front(); }

  const Tokenizer tokenizer_ = Tokenizer::from_json(TinyTokenizer().json());
};

const auto kLength = FinishReason::kLength, kStop = FinishReason::kStop;
using Then = Response::Then;

TEST_F(CompletionResponseTest, IsATextCompletion) {
  Pushed c = response(R"({"prompt": "he"})");
  EXPECT_FALSE(c.done());
  EXPECT_EQ(c.push(0, 0, std::vector{token(259), token(260, kLength)}), Then::kGoOn);
  EXPECT_TRUE(c.done());
  EXPECT_EQ(c.json(),
            R"({"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m\"", "choices": [{"index": 0, )"
            R"("text": "hello w", "logprobs": null, "finish_reason": "length"}], "usage": {"prompt_tokens": 1, )"
            R"("completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}})");
}

TEST_F(CompletionResponseTest, NumbersChoicesByPromptThenByChoice) {
  Pushed c = response(R"({"prompt": ["he", "hello"], "n": 2})");
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

TEST_F(CompletionResponseTest, AStopTextEndsAChoiceThatTheCallerAborts) {
  Pushed c = response(R"({"prompt": "he", "stop": "ow"})");
  EXPECT_EQ(c.push(0, 0, std::vector{token('x'), token('o')}), Then::kGoOn);
  EXPECT_EQ(c.push(0, 0, std::vector{token('w'), token('z')}), Then::kAbort);
  EXPECT_TRUE(c.done());
  StepOutput aborted{.finish_reason = FinishReason::kAborted};
  EXPECT_EQ(c.push(0, 0, std::vector{aborted}), Then::kGoOn) << "what is behind its end is ignored";
  EXPECT_EQ(choice_of(c).at("text").as_string(), "x");
  EXPECT_EQ(choice_of(c).at("finish_reason").as_string(), "stop");
}

TEST_F(CompletionResponseTest, AStopTextInTheLastTokenNeedsNoAbort) {
  Pushed c = response(R"({"prompt": "he", "stop": "w"})");
  EXPECT_EQ(c.push(0, 0, std::vector{token('w', kLength)}), Then::kGoOn);
  EXPECT_EQ(choice_of(c).at("finish_reason").as_string(), "stop");
}

TEST_F(CompletionResponseTest, ShowsLogProbabilitiesOfEachTokenAndItsRivals) {
  Pushed c = response(R"({"prompt": "he", "logprobs": 2})");
  StepOutput first = token(259, {}, -0.25f), last = token(300, kStop, -2.5f);
  first.top = {{259, -0.3f}, {'a', -2}, {'b', -3}};
  last.top = {{'a', -1}, {0xe2, -std::numeric_limits<float>::infinity()}};
  c.push(0, 0, std::vector{first, last});
  const std::string json = c.json();
  EXPECT_NE(
      json.find(R"("text": "hello", "logprobs": {"tokens": ["hello", "<|end|>"], "token_logprobs": [-0.25, -2.5], )"
                R"("top_logprobs": [{"hello": -0.25, "a": -2}, {"a": -1, "�": -9999, "<|end|>": -2.5}], )"
                R"("text_offset": [0, 5]}, "finish_reason": "stop")"),
      std::string::npos)
      << json;
}

TEST_F(CompletionResponseTest, OfTokensWithOneTextShowsTheLikelier) {
  Pushed c = response(R"({"prompt": "he", "logprobs": 2})");
  StepOutput output = token('a', kLength, -1);
  output.top = {{0xe2, -0.5f}, {0xe3, -0.75f}};  // both a part of a character
  c.push(0, 0, std::vector{output});
  EXPECT_NE(c.json().find(R"("top_logprobs": [{"�": -0.5, "a": -1}])"), std::string::npos) << c.json();
}

TEST_F(CompletionResponseTest, AnEchoBeginsWithThePrompt) {
  Pushed c = response(R"({"prompt": "he w", "echo": true, "logprobs": 1, "max_tokens": 1})");
  StepOutput output = token(259, kLength, -3);
  output.top = {{'x', -0.5f}};
  output.prompt_logprobs = {{{260, -1.5f}, {{'y', -0.125f}, {'z', -0.25f}}}};
  c.push(0, 0, std::vector{output});
  const std::string json = c.json();
  EXPECT_NE(json.find(R"("text": "he whello", "logprobs": {"tokens": ["he", " w", "hello"], )"
                      R"("token_logprobs": [null, -1.5, -3], "top_logprobs": [null, {"y": -0.125, " w": -1.5}, )"
                      R"({"x": -0.5, "hello": -3}], "text_offset": [0, 2, 4]})"),
            std::string::npos)
      << json;
}

TEST_F(CompletionResponseTest, AnEchoOfNoTokensHasThePromptAlone) {
  Pushed c = response(R"({"prompt": [256, 260], "echo": true, "max_tokens": 0})");
  c.push(0, 0, std::vector{token(259, kLength)});
  EXPECT_EQ(choice_of(c).at("text").as_string(), "he w");
  EXPECT_EQ(choice_of(c).at("finish_reason").as_string(), "length");
  EXPECT_EQ(c.usage().completion_tokens, 0);
}

TEST_F(CompletionResponseTest, HasVllmsLogProbabilitiesOfThePrompt) {
  Pushed c = response(R"({"prompt": "he w", "prompt_logprobs": 1, "n": 2})");
  StepOutput output = token('a', kLength);
  output.prompt_logprobs = {{{260, -1.5f}, {{'y', -0.125f}, {'z', -0.25f}}}};
  c.push(0, 0, std::vector{output});
  c.push(0, 1, std::vector{token('b', kLength)});
  const std::string expected =
      R"("prompt_logprobs": [null, {"260": {"logprob": -1.5, "decoded_token": " w"}, "121": {"logprob": -0.125, "decoded_token": "y"}}])";
  const std::string json = c.json();
  const size_t first = json.find(expected);
  ASSERT_NE(first, std::string::npos) << json;
  EXPECT_NE(json.find(expected, first + 1), std::string::npos) << "each choice of the prompt has them";
}

TEST_F(CompletionResponseTest, ShowsSpecialTokensIfAsked) {
  for (const auto& [skip, text] : {std::pair{"true", "ab"}, {"false", "a<|end|>b"}}) {
    Pushed c = response(str(R"({"prompt": "he", "skip_special_tokens": )", skip, "}"));
    c.push(0, 0, std::vector{token('a'), token(300), token('b', kLength)});
    EXPECT_EQ(choice_of(c).at("text").as_string(), text);
  }
}

TEST_F(CompletionResponseTest, StopTextsSeeShownSpecialTokensOnce) {
  Pushed c = response(R"({"prompt": "he", "skip_special_tokens": false, "stop": "<|end|><|end|>"})");
  EXPECT_EQ(c.push(0, 0, std::vector{token('a'), token(300), token('b')}), Then::kGoOn);
  EXPECT_EQ(c.push(0, 0, std::vector{token(300), token(300)}), Then::kAbort);
  EXPECT_EQ(choice_of(c).at("text").as_string(), "a<|end|>b");
}

TEST_F(CompletionResponseTest, ThrowsTheErrorOfAFailedChoice) {
  Pushed c = response(R"({"prompt": "he"})");
  StepOutput failed{.finish_reason = FinishReason::kError};
  failed.error = Error(ErrorCode::kModelFile, "no numbers");
  EXPECT_EQ(testing_support::refusal_of([&] { c.push(0, 0, std::vector{failed}); }).sentence, "no numbers");
}

TEST_F(CompletionResponseTest, CountsCachedTokens) {
  Pushed c = response(R"({"prompt": ["he", "ll"]})");
  for (const int32_t prompt : {0, 1}) {
    StepOutput output = token('a', kLength);
    output.num_reused = 1;
    c.push(prompt, 0, std::vector{output});
  }
  EXPECT_EQ(c.usage().cached_tokens, 2);
  EXPECT_NE(body_of(c).at("usage").find("prompt_tokens_details"), nullptr);
  const Pushed silent = response(R"({"prompt": "he"})", {.shows_cached_tokens = false});
  EXPECT_EQ(body_of(silent).at("usage").find("prompt_tokens_details"), nullptr) << "only if the head asks for them";
}

TEST_F(CompletionResponseTest, StreamsWhatEachChoiceHasNotShown) {
  Pushed c = response(R"({"prompt": "he", "stream": true, "n": 2})", {.id = "c", .created = 7, .model = "m"});
  EXPECT_EQ(c.news(), "") << "nothing came";
  c.push(0, 1, std::vector{token(0xe2)});
  EXPECT_EQ(c.news(0, 1), "") << "a part of a character";
  c.push(0, 1, std::vector{token('a'), token('b', kLength)});
  EXPECT_EQ(c.news(0, 1), R"(data: {"id": "c", "object": "text_completion", "created": 7, "model": "m", "choices": )"
                          R"([{"index": 1, "text": "�ab", "logprobs": null, "finish_reason": "length"}]})"
                          "\n\n");
  EXPECT_EQ(c.news(0, 1), "") << "it has ended";
  c.push(0, 0, std::vector{token(300, kStop)});
  EXPECT_NE(c.news().find(R"("text": "", "logprobs": null, "finish_reason": "stop")"), std::string::npos);
  std::string end;
  c.append_end({}, end);
  EXPECT_EQ(end, "data: [DONE]\n\n");
}

TEST_F(CompletionResponseTest, StreamsLogProbabilitiesWithTheirTokens) {
  Pushed c = response(R"({"prompt": "he", "stream": true, "logprobs": 0, "echo": true})");
  StepOutput first = token(259);
  first.prompt_logprobs = {};
  c.push(0, 0, std::vector{first});
  EXPECT_NE(c.news().find(R"("text": "hehello", "logprobs": {"tokens": ["he", "hello"], "token_logprobs": [null, -1], )"
                          R"("top_logprobs": [null, {"hello": -1}], "text_offset": [0, 2]})"),
            std::string::npos);
  c.push(0, 0, std::vector{token('x', kLength)});
  EXPECT_NE(c.news().find(R"("text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-1], )"
                          R"("top_logprobs": [{"x": -1}], "text_offset": [7]}, "finish_reason": "length")"),
            std::string::npos);
}

TEST_F(CompletionResponseTest, AStreamMayEndWithItsUsage) {
  Pushed c = response(R"({"prompt": "he", "stream": true, "stream_options": {"include_usage": true}})");
  c.push(0, 0, std::vector{token('a', kLength)});
  EXPECT_NE(c.news().find(R"("usage": null)"), std::string::npos);
  std::string end;
  c.append_end({}, end);
  EXPECT_NE(end.find(R"("choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, )"
                     R"("prompt_tokens_details": {"cached_tokens": 0}}})"),
            std::string::npos)
      << end;
}

TEST_F(CompletionResponseTest, ExplainsTheCacheWithoutTheTextOfOthers) {
  Pushed c = response(R"({"prompt": "he", "headrace": {"explain_cache": true}})");
  PrefixMiss miss{.why = PrefixMiss::Why::kOtherText, .position = 64, .num_matching = 70, .num_computed = 6};
  miss.own_text = {256}, miss.cached_text = {259};
  c.Response::push(0, {.outputs = {token('a', kLength)}, .miss = std::make_shared<PrefixMiss>(miss)});
  const JsonValue cache = choice_of(c).at("headrace").at("cache");
  EXPECT_EQ(cache.at("why").as_string(), "other_text");
  EXPECT_EQ(cache.at("cached_tokens").as_int(), 64);
  EXPECT_EQ(cache.at("matching_tokens").as_int(), 70);
  EXPECT_EQ(cache.at("own_text").as_string(), "he");
  EXPECT_EQ(c.json().find("hello"), std::string::npos);
}

TEST_F(CompletionResponseTest, StreamsTheStepsOfABlock) {
  Pushed c = response(R"({"prompt": "he", "stream": true, "stream_mode": "denoise"})");
  StepReport report{.step = 2};
  report.blocks = {{.begin = 4, .end = 8, .num_masked = 3}};
  report.decided = {{.position = 5, .id = 259, .confidence = 0.5f}};
  report.pending = {std::nullopt, report.decided.front()};
  c.Response::push(0, {.report = report});
  EXPECT_NE(c.news().find(R"("headrace": {"denoise": {"step": 2, "blocks": [{"begin": 4, "end": 8, "masked": 3}], )"
                          R"("decided": [{"position": 5, "id": 259, "text": "hello", "confidence": 0.5}], "pending": )"
                          R"([null, {"position": 5, "id": 259, "text": "hello", "confidence": 0.5}]}})"),
            std::string::npos);
  EXPECT_EQ(c.news(), "") << "a step is shown once";
}

}  // namespace
}  // namespace headrace
