#include "headrace/serve/completion_request.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "headrace/serve/json_body.h"
#include "headrace/serve/prompt_size.h"
#include "support/source_tree.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

const SamplingParams kDefaults{.temperature = 0.6f, .top_k = 20, .top_p = 0.95f};

CompletionRequest read(std::string_view fields) {
  return completion_request(JsonBody(str(R"({"prompt": "Once")", fields.empty() ? "" : ", ", fields, "}"), "b").root(),
                            kDefaults);
}

std::optional<RequestError> error_of(std::string_view body) {
  try {
    completion_request(JsonBody(body, "the body").root(), {});
  } catch (const RequestError& error) {
    return error;
  }
  return std::nullopt;
}

TEST(CompletionRequest, HasOpenAIsAndTheModelsDefaults) {
  const CompletionRequest r = read("");
  EXPECT_EQ(r.prompts, std::vector<CompletionRequest::Prompt>{"Once"});
  EXPECT_EQ(r.params.max_tokens, 16);
  EXPECT_EQ(r.params.temperature, 0.6f);
  EXPECT_EQ(r.params.top_k, 20);
  EXPECT_EQ(r.params.top_p, 0.95f);
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.params.seed || r.logprobs || r.params.prompt_logprobs || r.echo || r.stream || r.no_output);
  EXPECT_TRUE(r.add_special_tokens && r.skip_special_tokens && r.model.empty() && r.unknown_fields.empty());
}

TEST(CompletionRequest, ReadsEveryField) {
  const CompletionRequest r = read(
      R"("model": "m", "max_tokens": 7, "temperature": 1, "top_p": 0.5, "n": 2, "best_of": 2, "logprobs": 3, )"
      R"("stop": ["a", "b"], "presence_penalty": -1, "frequency_penalty": 0.5, "logit_bias": {"5": -100, "7": 1.5}, )"
      R"("seed": 9, "stream": true, "stream_options": {"include_usage": true}, "top_k": -1, "min_p": 0.1, )"
      R"("repetition_penalty": 1.5, "min_tokens": 2, "stop_token_ids": [3, 4], "ignore_eos": true, )"
      R"("prompt_logprobs": 1, "add_special_tokens": false, "skip_special_tokens": false, "cache_salt": "s", "user": "u")");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.params.max_tokens, 7);
  EXPECT_EQ(r.params.temperature, 1);
  EXPECT_EQ(r.params.top_p, 0.5f);
  EXPECT_EQ(r.n, 2);
  EXPECT_EQ(r.logprobs, 3);
  EXPECT_EQ(r.params.top_logprobs, 3);
  EXPECT_EQ(r.params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.params.presence_penalty, -1);
  EXPECT_EQ(r.params.frequency_penalty, 0.5f);
  ASSERT_EQ(r.params.logit_bias.size(), 2u);
  EXPECT_EQ(r.params.logit_bias[0].id, 5);
  EXPECT_EQ(r.params.logit_bias[0].bias, -100);
  EXPECT_EQ(r.params.logit_bias[1].bias, 1.5f);
  EXPECT_EQ(r.params.seed, 9u);
  EXPECT_TRUE(r.stream && r.include_usage);
  EXPECT_EQ(r.params.top_k, 0);
  EXPECT_EQ(r.params.min_p, 0.1f);
  EXPECT_EQ(r.params.repetition_penalty, 1.5f);
  EXPECT_EQ(r.params.min_tokens, 2);
  EXPECT_EQ(r.params.stop_token_ids, (std::vector<int32_t>{3, 4}));
  EXPECT_EQ(r.params.end_of_text, SamplingParams::EndOfText::kIgnored);
  EXPECT_EQ(r.params.prompt_logprobs, 1);
  EXPECT_FALSE(r.add_special_tokens || r.skip_special_tokens);
  EXPECT_EQ(r.cache_salt, "s");
}

TEST(CompletionRequest, SaysHowADiffusionModelDecodes) {
  const DecodingParams d =
      read(R"("headrace": {"decoding": {"threshold": 0.5, "accept": "margin", "steps": 4, "schedule": "reference", )"
           R"("cfg_scale": null}})")
          .params.decoding;
  EXPECT_EQ(d.threshold, 0.5f);
  EXPECT_EQ(d.rule, DecodingParams::Rule::kMargin);
  EXPECT_EQ(d.steps, 4);
  EXPECT_EQ(d.schedule, DecodingParams::Schedule::kReference);
  for (const auto& [member, sentence] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"("steps": 0)", "headrace.decoding.steps is 0, expected an integer from 1 to 1048576"},
           {R"("accept": "x")",
            "headrace.decoding.accept is a string, expected one of confidence, margin, entropy, entropy_bound, "
            "leftmost, "
            "random"},
           {R"("blocks": 1)", "headrace.decoding.blocks is unknown"}}) {
    const auto error = error_of(str(R"({"prompt": "a", "headrace": {"decoding": {)", member, "}}}"));
    ASSERT_TRUE(error) << member;
    EXPECT_STREQ(error->what(), sentence);
  }
}

TEST(CompletionRequest, NullIsAsGoodAsAbsent) {
  for (const FieldDescription& field : completion_fields()) {
    if (field.name == "prompt") continue;
    const CompletionRequest r = read(str('"', field.name, R"(": null)"));
    EXPECT_EQ(r.params.max_tokens, 16) << field.name;
    EXPECT_EQ(r.params.temperature, 0.6f) << field.name;
    EXPECT_TRUE(r.unknown_fields.empty()) << field.name;
  }
}

TEST(CompletionRequest, TakesPromptsOfFourForms) {
  using Prompts = std::vector<CompletionRequest::Prompt>;
  const auto prompts = [](std::string_view json) {
    return completion_request(JsonBody(str(R"({"prompt": )", json, "}"), "b").root(), {}).prompts;
  };
  const std::vector<int32_t> ids{1, 2}, others{3};
  EXPECT_EQ(prompts(R"("a")"), Prompts{"a"});
  EXPECT_EQ(prompts(R"(["a", "b"])"), (Prompts{"a", "b"}));
  EXPECT_EQ(prompts("[1, 2]"), Prompts{ids});
  EXPECT_EQ(prompts("[[1, 2], [3]]"), (Prompts{ids, others}));
}

TEST(CompletionRequest, AStopTextNeedsNoList) {
  EXPECT_EQ(read(R"("stop": "x")").params.stop, std::vector<std::string>{"x"});
}

TEST(CompletionRequest, NoTokensAreForAnEchoAlone) {
  const CompletionRequest r = read(R"("max_tokens": 0, "echo": true, "logprobs": 2)");
  EXPECT_TRUE(r.no_output);
  EXPECT_EQ(r.params.max_tokens, 1);
  EXPECT_EQ(r.params.prompt_logprobs, 2);
}

TEST(CompletionRequest, KeepsTheNamesOfUnknownFields) {
  EXPECT_EQ(read(R"("frobnicate": [1, {"x": 2}], "user": "u", "Top_p": 1)").unknown_fields,
            (std::vector<std::string>{"frobnicate", "Top_p"}));
}

TEST(CompletionRequest, RefusesEachFieldInOneSentence) {
  struct Case {
    std::string_view fields, param, sentence;
  };
  const Case kCases[] = {
      {R"("model": 3)", "model", "model is 3, expected a string"},
      {R"("max_tokens": -1)", "max_tokens", "max_tokens is -1, expected an integer from 0 to 1073741824"},
      {R"("max_tokens": 2147483648)", "max_tokens",
       "max_tokens is 2147483648, expected an integer from 0 to 1073741824"},
      {R"("max_tokens": 0)", "max_tokens", "max_tokens is 0, expected 1 or more without echo"},
      {R"("temperature": -1)", "temperature", "temperature is -1, expected a number from 0 to 100"},
      {R"("temperature": "0.7")", "temperature", "temperature is a string, expected a number from 0 to 100"},
      {R"("temperature": NaN)", "temperature", "temperature is NaN, expected a number from 0 to 100"},
      {R"("temperature": 2.1e308)", "temperature", "temperature is 2.1e308, expected a number from 0 to 100"},
      {R"("top_p": 0)", "top_p", "top_p is 0, expected a number from 1e-06 to 1"},
      {R"("top_p": 1.1)", "top_p", "top_p is 1.1, expected a number from 1e-06 to 1"},
      {R"("n": 0)", "n", "n is 0, expected an integer from 1 to 64"},
      {R"("n": 65)", "n", "n is 65, expected an integer from 1 to 64"},
      {R"("n": 4294967297)", "n", "n is 4294967297, expected an integer from 1 to 64"},
      {R"("best_of": 3)", "best_of", "best_of is 3, expected the value of n, 1"},
      {R"("echo": 1)", "echo", "echo is 1, expected true or false"},
      {R"("logprobs": true)", "logprobs", "logprobs is true, expected an integer from 0 to 20"},
      {R"("logprobs": 21)", "logprobs", "logprobs is 21, expected an integer from 0 to 20"},
      {R"("stop": 1)", "stop", "stop is 1, expected a string or a list of strings"},
      {R"("stop": ["a", 1])", "stop[1]", "stop[1] is 1, expected a string"},
      {R"("stop": "")", "stop", "stop has 0 bytes, expected 1 to 1024"},
      {R"("presence_penalty": 3)", "presence_penalty", "presence_penalty is 3, expected a number from -2 to 2"},
      {R"("frequency_penalty": -1e30)", "frequency_penalty",
       "frequency_penalty is -1e+30, expected a number from -2 to 2"},
      {R"("logit_bias": [1])", "logit_bias",
       "logit_bias is an array, expected an object of token ids and numbers from -100 to 100"},
      {R"("logit_bias": {"x": 1})", "logit_bias", "logit_bias has the key 'x', expected a token id"},
      {R"("logit_bias": {"-1": 1})", "logit_bias", "logit_bias has the key '-1', expected a token id"},
      {R"("logit_bias": {"4294967296": 1})", "logit_bias", "logit_bias has the key '4294967296', expected a token id"},
      {R"("logit_bias": {"1": 1e308})", "logit_bias.1", "logit_bias.1 is 1e+308, expected a number from -100 to 100"},
      {R"("seed": -1)", "seed", "seed is -1, expected an integer from 0 to 9223372036854775807"},
      {R"("stream": "yes")", "stream", "stream is a string, expected true or false"},
      {R"("stream_options": {"include_usage": true})", "stream_options",
       "stream_options asks for the usage, expected none without stream"},
      {R"("suffix": "x")", "suffix", "suffix is not supported"},
      {R"("guided_json": {})", "guided_json", "guided_json is not supported"},
      {R"("use_beam_search": true)", "use_beam_search", "use_beam_search is not supported"},
      {R"("top_k": -2)", "top_k", "top_k is -2, expected an integer from -1 to 1073741824"},
      {R"("min_p": 2)", "min_p", "min_p is 2, expected a number from 0 to 1"},
      {R"("repetition_penalty": 0)", "repetition_penalty",
       "repetition_penalty is 0, expected a number from 0.01 to 100"},
      {R"("min_tokens": 17)", "min_tokens", "min_tokens is 17, expected at most max_tokens, 16"},
      {R"("stop_token_ids": [-1])", "stop_token_ids[0]",
       "stop_token_ids[0] is -1, expected an integer from 0 to 2147483647"},
      {R"("ignore_eos": 0)", "ignore_eos", "ignore_eos is 0, expected true or false"},
      {R"("prompt_logprobs": -1)", "prompt_logprobs", "prompt_logprobs is -1, expected an integer from 0 to 20"},
      {R"("skip_special_tokens": "no")", "skip_special_tokens",
       "skip_special_tokens is a string, expected true or false"},
      {R"("n": 1, "n": 9)", "n", "n occurs twice, expected once"},
  };
  for (const Case& c : kCases) {
    const auto found = error_of(str(R"({"prompt": "a", )", c.fields, "}"));
    ASSERT_TRUE(found) << c.fields;
    EXPECT_EQ(std::string_view(found->what()), c.sentence);
    EXPECT_EQ(found->param(), c.param) << c.fields;
    EXPECT_EQ(found->status(), 400) << c.fields;
  }
}

TEST(CompletionRequest, RefusesPromptsInOneSentence) {
  const std::pair<std::string_view, std::string_view> kCases[] = {
      {"{}", "prompt is missing, expected a string, token ids, or a list of either"},
      {R"({"prompt": null})", "prompt is missing, expected a string, token ids, or a list of either"},
      {R"({"prompt": 3})", "prompt is 3, expected a string, token ids, or a list of either"},
      {R"({"prompt": []})", "prompt is an empty list, expected a string, token ids, or a list of either"},
      {R"({"prompt": ["a", 1]})", "prompt[1] is 1, expected a string"},
      {R"({"prompt": [1, "a"]})", "prompt[1] is a string, expected an integer from 0 to 2147483647"},
      {R"({"prompt": [1.5]})", "prompt[0] is 1.5, expected an integer from 0 to 2147483647"},
      {R"({"prompt": [2147483648]})", "prompt[0] is 2147483648, expected an integer from 0 to 2147483647"},
      {R"({"prompt": [[1], [-1]]})", "prompt[1][0] is -1, expected an integer from 0 to 2147483647"},
  };
  for (const auto& [body, sentence] : kCases) {
    const auto found = error_of(body);
    ASSERT_TRUE(found) << body;
    EXPECT_EQ(std::string_view(found->what()), sentence);
  }
}

TEST(CompletionRequest, BoundsItsLists) {
  std::string prompts = R"("a")", stops = R"("a")", biases = R"("0": 1)";
  for (int i = 1; i <= 1024; ++i) {
    prompts += R"(, "a")";
    biases += str(", \"", i, "\": 1");
    if (i <= 16) stops += R"(, "a")";
  }
  EXPECT_EQ(std::string_view(error_of(str(R"({"prompt": [)", prompts, "]}"))->what()),
            "prompt has more than 1024 entries, expected at most so many");
  EXPECT_EQ(std::string_view(error_of(str(R"({"prompt": "a", "stop": [)", stops, "]}"))->what()),
            "stop has more than 16 texts, expected at most so many");
  EXPECT_EQ(std::string_view(error_of(str(R"({"prompt": "a", "logit_bias": {)", biases, "}}"))->what()),
            "logit_bias has 1025 entries, expected at most 1024");
}

TEST(CompletionRequest, TheDocumentsNameEveryField) {
  std::ifstream page(testing_support::source_tree() / "docs" / "batch.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  for (const FieldDescription& field : completion_fields()) {
    EXPECT_NE(text.find(str('`', field.name, '`')), std::string::npos) << field.name;
  }
}

TEST(GenerationRequests, AreOneForEachPrompt) {
  const Tokenizer tokenizer = Tokenizer::from_json(TinyTokenizer().json());
  const CompletionRequest r =
      completion_request(JsonBody(R"({"prompt": ["hello", "<|end|>he"], "n": 3, "cache_salt": "s"})", "b").root(), {});
  EXPECT_EQ(r.num_choices(), 6);
  const std::vector<GenerationRequest> requests = generation_requests(r, tokenizer, PromptSize(tokenizer, 100));
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].prompt_ids, tokenizer.encode("hello"));
  EXPECT_EQ(requests[1].prompt_ids.front(), 300) << "a special token that a prompt spells is one";
  EXPECT_EQ(requests[1].n, 3);
  EXPECT_EQ(requests[1].cache_salt, "s");
}

TEST(GenerationRequests, RefusePromptsThatAreEmptyOrTooLong) {
  const Tokenizer tokenizer = Tokenizer::from_json(TinyTokenizer().json());
  const auto refused = [&](std::string_view body) -> std::optional<RequestError> {
    try {
      generation_requests(completion_request(JsonBody(body, "b").root(), {}), tokenizer, PromptSize(tokenizer, 4));
    } catch (const RequestError& error) {
      return error;
    }
    return std::nullopt;
  };
  EXPECT_EQ(std::string_view(refused(R"({"prompt": ""})")->what()),
            "prompt is empty, expected a token or more: none is put in front of it");
  EXPECT_FALSE(refused(R"({"prompt": [1, 2, 3]})"));
  const auto too_long = refused(R"({"prompt": [1, 2, 3, 4]})");
  EXPECT_EQ(std::string_view(too_long->what()),
            "the prompt has 4 tokens, the context holds 4 with at least one new token");
  EXPECT_EQ(too_long->api_code(), "context_length_exceeded");
}

TEST(RequestError, IsOpenAIsErrorObject) {
  EXPECT_EQ(RequestError(400, "n is \"0\"", "n").json(),
            R"({"error": {"message": "n is \"0\"", "type": "invalid_request_error", "param": "n", "code": null}})");
  EXPECT_EQ(
      RequestError(404, "no such model", "model", "model_not_found").json(),
      R"({"error": {"message": "no such model", "type": "not_found_error", "param": "model", "code": "model_not_found"}})");
  EXPECT_EQ(request_error_of(Error(ErrorCode::kInternal, "x")).json(),
            R"({"error": {"message": "x", "type": "server_error", "param": null, "code": null}})");
}

TEST(RequestError, NamesTheEnginesParameter) {
  EXPECT_EQ(request_error_of(Error(ErrorCode::kInvalidArgument, "top_k is -1, expected 0")).param(), "top_k");
  EXPECT_EQ(request_error_of(Error(ErrorCode::kUnsupported, "stop_token_ids: 9, expected 3")).param(),
            "stop_token_ids");
  EXPECT_EQ(request_error_of(Error(ErrorCode::kInvalidArgument, "the prompt has 3 tokens")).param(), "");
}

}  // namespace
}  // namespace headrace
