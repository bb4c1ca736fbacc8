// Chat completions: what requests may say, and what responses are.
#include <gtest/gtest.h>

#include "headrace/serve/chat_request.h"
#include "headrace/serve/chat_response.h"
#include "headrace/serve/json_body.h"
#include "headrace/weights/config_file.h"
#include "serving.h"
#include "text/tiny_tokenizer.h"

namespace headrace {
namespace {

using testing_support::FakeExchange;
using testing_support::kAngleTemplate;
using testing_support::Serving;

constexpr const char* kChatPath = "/v1/chat/completions";

std::optional<RequestError> chat_error(std::string_view fields) {
  try {
    chat_request(JsonBody(str(R"({"messages": [{"role": "user", "content": "Hi"}], )", fields, "}"), "b").root(), {});
  } catch (const RequestError& error) {
    return error;
  }
  return std::nullopt;
}

ChatInput input_of(std::string_view messages) {
  return chat_request(JsonBody(str(R"({"messages": )", messages, "}"), "b").root(), {}).input;
}

std::string content_of_last(const ChatInput& input) {
  const auto& message = std::get<std::shared_ptr<const TemplateValue::Object>>(input.messages.back().variant());
  for (const auto& [name, value] : *message) {
    if (name == "content") return std::get<std::string>(value.variant());
  }
  return "none";
}

TEST(ChatRequest, HasTheServersDefaults) {
  const ChatRequest r =
      chat_request(JsonBody(R"({"messages": [{"role": "user", "content": "Hi"}]})", "b").root(), {.max_tokens = 160});
  EXPECT_EQ(r.params.max_tokens, 160);
  EXPECT_TRUE(r.input.add_generation_prompt);
  EXPECT_FALSE(r.logprobs);
}

TEST(ChatRequest, JoinsTheTextsOfAMessagesParts) {
  EXPECT_EQ(content_of_last(input_of(R"([{"role": "user", "content": "Hi"}])")), "Hi");
  EXPECT_EQ(content_of_last(input_of(
                R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])")),
            "a\nb");
}

TEST(ChatRequest, RefusesByNameWhatTheEngineLacks) {
  struct Case {
    const char *fields, *param;
  };
  for (const Case& c : std::initializer_list<Case>{
           {R"("tools": [{"type": "function"}])", "tools"},
           {R"("tool_choice": "required")", "tool_choice"},
           {R"("response_format": {"type": "json_object"})", "response_format"},
           {R"("chat_template": "x")", "chat_template"},
           {R"("audio": {})", "audio"},
           {R"("modalities": ["text", "audio"])", "modalities[1]"},
           {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs"},
           {R"("chat_template_kwargs": {"__class__": 1})", "chat_template_kwargs"},
           {R"("chat_template_kwargs": {"chat_template": "x"})", "chat_template_kwargs"},
           {R"("chat_template_kwargs": 5)", "chat_template_kwargs"},
           {R"("max_tokens": 0)", "max_tokens"},
           {R"("top_logprobs": 3)", "top_logprobs"},
           {R"("logprobs": 3)", "logprobs"},
           {R"("continue_final_message": true, "add_generation_prompt": true)", "continue_final_message"}}) {
    const auto error = chat_error(c.fields);
    ASSERT_TRUE(error) << c.fields;
    EXPECT_EQ(error->status(), 400) << c.fields;
    EXPECT_EQ(error->param(), c.param) << c.fields;
  }
  EXPECT_FALSE(
      chat_error(R"("tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "modalities": ["text"])"));
}

TEST(ChatRequest, RefusesMessagesThatAreNone) {
  for (const char* messages :
       {"[]", "5", "[5]", "[{}]", R"([{"role": 5}])", R"([{"role": "user", "content": 5}])",
        R"([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])",
        R"([{"role": "user", "content": [{"type": "text"}]}])", R"([{"role": "user", "role": "user"}])"}) {
    try {
      input_of(messages);
      ADD_FAILURE() << messages;
    } catch (const RequestError& error) {
      EXPECT_TRUE(error.param().starts_with("messages")) << messages << ": " << error.param();
    }
  }
}

TEST(ChatRequest, ReadsTheArgumentsOfACallAsAnObject) {
  const ChatInput input = input_of(
      R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}])");
  const auto& message = std::get<std::shared_ptr<const TemplateValue::Object>>(input.messages.back().variant());
  const auto& calls = std::get<std::shared_ptr<const TemplateValue::Array>>(message->at(2).second.variant());
  const auto& call = std::get<std::shared_ptr<const TemplateValue::Object>>(calls->front().variant());
  const auto& function = std::get<std::shared_ptr<const TemplateValue::Object>>(call->at(1).second.variant());
  EXPECT_TRUE(std::holds_alternative<std::shared_ptr<const TemplateValue::Object>>(function->at(1).second.variant()));
}

// Ids of the tiny tokenizer as in completion_response_test.cpp.
class ChatResponseTest : public testing::Test {
 protected:
  struct Pushed : ChatResponse {
    using ChatResponse::ChatResponse;
    void push(std::vector<StepOutput> outputs, int32_t choice = 0) {
      Response::push(0, {.choice = choice, .outputs = std::move(outputs)});
    }
    std::string news(int32_t choice = 0) {
      std::string out;
      append_news(0, choice, out);
      return out;
    }
  };
  Pushed response(std::string_view fields, std::string prompt = "he") const {
    ChatRequest request =
        chat_request(JsonBody(str(R"({"messages": [{"role": "user", "content": "Hi"}])", fields, "}"), "b").root(), {});
    return {std::move(request),
            {.id = "c", .created = 7, .model = "m"},
            {.text = std::move(prompt), .ids = {256}},
            tokenizer_};
  }
  std::vector<StepOutput> tokens(std::string_view text, std::optional<FinishReason> reason = {}) const {
    std::vector<StepOutput> outputs;
    for (const int32_t id : tokenizer_.encode(text)) {
      outputs.push_back({.num_forwards = 1});
      outputs.back().token.id = id, outputs.back().token.logprob = -1;
    }
    outputs.back().finish_reason = reason;
    return outputs;
  }

  const Tokenizer tokenizer_ = Tokenizer::from_json(TinyTokenizer().json());
};

TEST_F(ChatResponseTest, IsAChatCompletion) {
  Pushed r = response("");
  r.push(tokens("hello w", FinishReason::kLength));
  EXPECT_EQ(
      r.json({}),
      R"({"id": "c", "object": "chat.completion", "created": 7, "model": "m", "choices": [{"index": 0, "message": )"
      R"({"role": "assistant", "content": "hello w", "refusal": null}, "logprobs": null, "finish_reason": )"
      R"("length"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, )"
      R"("prompt_tokens_details": {"cached_tokens": 0}}})");
}

TEST_F(ChatResponseTest, TellsThinkingApart) {
  Pushed r = response("");
  r.push(tokens("<think>hello</think>\n\nab", FinishReason::kLength));
  EXPECT_NE(r.json({}).find(R"("content": "ab", "reasoning_content": "hello")"), std::string::npos) << r.json({});
  Pushed begun = response("", "x<think>\n");
  begun.push(tokens("hello</think>ab", FinishReason::kLength));
  EXPECT_NE(begun.json({}).find(R"("content": "ab", "reasoning_content": "hello")"), std::string::npos);
}

TEST_F(ChatResponseTest, StreamsDeltas) {
  Pushed r = response(R"(, "stream": true)");
  r.push(tokens("<think>he"));
  EXPECT_EQ(r.news(),
            "data: {\"id\": \"c\", \"object\": \"chat.completion.chunk\", \"created\": 7, \"model\": \"m\", "
            "\"choices\": [{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": \"\"}, \"logprobs\": "
            "null, \"finish_reason\": null}]}\n\n"
            "data: {\"id\": \"c\", \"object\": \"chat.completion.chunk\", \"created\": 7, \"model\": \"m\", "
            "\"choices\": [{\"index\": 0, \"delta\": {\"reasoning_content\": \"he\"}, \"logprobs\": null, "
            "\"finish_reason\": null}]}\n\n");
  r.push(tokens("</th"));
  EXPECT_EQ(r.news(), "") << "it may be the end of thinking";
  r.push(tokens("ink>ab", FinishReason::kLength));
  EXPECT_NE(r.news().find(R"("delta": {"content": "ab"}, "logprobs": null, "finish_reason": "length")"),
            std::string::npos);
}

TEST_F(ChatResponseTest, ShowsLogProbabilitiesInChatsForm) {
  Pushed r = response(R"(, "logprobs": true, "top_logprobs": 1)");
  std::vector<StepOutput> outputs = tokens("hello", FinishReason::kStop);
  outputs[0].top = {{'a', -0.5f}, {'b', -2}};
  r.push(outputs);
  EXPECT_NE(
      r.json({}).find(R"("logprobs": {"content": [{"token": "hello", "logprob": -1, "bytes": [104, 101, 108, 108, )"
                      R"(111], "top_logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}]}], "refusal": null})"),
      std::string::npos)
      << r.json({});
}

TEST(Chat, RendersTheTemplate) {
  Serving serving;
  serving.open(ChatTemplate::from_text(kAngleTemplate, "", ""));
  const std::string messages = R"("messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}])";
  const auto ids = [&](const std::string& fields) {
    const auto reply = serving.post("/tokenize", "{" + messages + fields + "}");
    const JsonValue body = JsonValue::parse(reply->body(), "reply");
    std::string text;
    for (const JsonValue& id : body.at("tokens").as_array()) text += static_cast<char>(id.as_int());
    return text;
  };
  EXPECT_EQ(ids(""), "<system>S</system><user>Hi</user><assistant>");
  EXPECT_EQ(ids(R"(, "add_generation_prompt": false)"), "<system>S</system><user>Hi</user>");
  EXPECT_EQ(ids(R"(, "continue_final_message": true)"), "<system>S</system><user>Hi");
  EXPECT_EQ(ids(R"(, "chat_template_kwargs": {"enable_thinking": true})"),
            "<system>S</system><user>Hi</user><assistant><think>");
  const auto reply =
      serving.post(kChatPath, "{" + messages + R"(, "max_completion_tokens": 4, "seed": 1, "ignore_eos": true})");
  EXPECT_EQ(reply->status(), 200);
  const JsonValue body = JsonValue::parse(reply->body(), "reply");
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int(), 44);
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int(), 4);
  EXPECT_EQ(
      serving.post("/api/chat", R"({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]})")->body(),
      R"({"error": "messages[0].images is not supported: nothing but text is read"})");
  EXPECT_EQ(serving.post("/api/embed", "{}")->body(),
            R"({"error": "there is no /api/embed; /openapi.json lists what there is"})");
  EXPECT_EQ(
      serving.post("/api/chat", "{" + messages + R"(, "stream": false, "options": {"num_predict": 3}})")->status(),
      200);
}

TEST(Chat, ErrorsAreTheTemplatesOwn) {
  Serving serving;
  serving.open(ChatTemplate::from_text(kAngleTemplate, "", ""));
  const auto reply = serving.post(kChatPath, R"({"messages": [{"role": "robot", "content": "Hi"}]})");
  EXPECT_EQ(reply->status(), 400);
  EXPECT_NE(reply->body().find("no role robot"), std::string::npos) << reply->body();
  Serving without;
  without.open();
  const auto none = without.post(kChatPath, R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_EQ(none->status(), 400);
  EXPECT_NE(none->body().find("--chat-template"), std::string::npos);
}

}  // namespace
}  // namespace headrace
