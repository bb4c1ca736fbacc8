#include "headrace/serve/chat_response.h"

#include <utility>

#include "headrace/serve/server_sent_events.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

constexpr std::string_view kChat = "chat.completion", kChatChunk = "chat.completion.chunk";

// Appends the parts that are not empty as members, each with a comma in front.
void append_parts(const ReasoningStream::Parts& parts, std::string& out) {
  if (!parts.reasoning.empty()) {
    out += R"(, "reasoning_content": )";
    append_json_string(parts.reasoning, out);
  }
  if (!parts.content.empty()) {
    out += R"(, "content": )";
    append_json_string(parts.content, out);
  }
}

}  // namespace

ChatResponse::ChatResponse(ChatRequest request, ResponseInfo info, RenderedChat chat, const Tokenizer& tokenizer)
    : Response(std::move(request), std::move(info), {std::move(chat.ids)}, tokenizer), prompt_(std::move(chat.text)) {
  for (int32_t i = 0; i < request_.n; ++i) shown_.push_back({SplitAnswer(prompt_)});
}

std::string ChatResponse::json(const ResponseTimes& /*times*/) const {
  std::string out = object_begin(kChat) + R"(, "choices": )";
  size_t index = 0;
  append_list(prompts_.front().choices, out, [&](const Choice& choice) {
    out += str(R"({"index": )", index++, R"(, "message": )");
    append_message(choice, out);
    out += R"(, "logprobs": )";
    append_logprobs(output_tokens(choice, 0), out);
    out += str(R"(, "finish_reason": ")", name_of(choice.completion.finish_reason), '"');
    append_own_whole(choice, out);
    out += '}';
  });
  append_usage(out);
  return out + '}';
}

void ChatResponse::append_message(const Choice& choice, std::string& out) const {
  const auto parts = SplitAnswer(prompt_).next(choice.completion.text, SplitAnswer::Rest::kNone);
  out += R"({"role": "assistant", "content": )";
  append_json_string(parts.content, out);
  append_parts({.reasoning = parts.reasoning, .content = ""}, out);
  out += R"(, "refusal": null})";
}

void ChatResponse::append_logprobs(const std::vector<Token>& tokens, std::string& out) const {
  if (!request_.logprobs) {
    out += "null";
    return;
  }
  const auto append_token = [&](int32_t id, std::string_view text, float logprob) {
    out += R"({"token": )";
    append_json_string(text, out);
    out += R"(, "logprob": )";
    append_json_number(logprob, out);
    out += R"(, "bytes": )";
    append_list(tokenizer_.bytes_of(id), out, [&](char c) { out += str(int{static_cast<unsigned char>(c)}); });
  };
  out += R"({"content": )";
  append_list(tokens, out, [&](const Token& t) {
    append_token(t.id, t.text, t.logprob.value_or(0));
    out += R"(, "top_logprobs": )";
    append_list(t.top, out, [&](const TokenLogprob& rival) {
      append_token(rival.id, text_of(rival.id), rival.id == t.id ? t.logprob.value_or(0) : rival.logprob);
      out += '}';
    });
    out += '}';
  });
  out += R"(, "refusal": null})";
}

void ChatResponse::begin_chunk(size_t choice, std::string& out) const {
  out += kEventBegin;
  out += object_begin(kChatChunk);
  out += str(R"(, "choices": [{"index": )", choice, R"(, "delta": {)");
}

void ChatResponse::end_chunk(std::string& out) const {
  out += request_.include_usage ? R"(}], "usage": null})" : "}]}";
  out += kEventEnd;
}

void ChatResponse::append_news(int32_t prompt, int32_t choice, std::string& out) {
  Choice& c = choice_at(prompt, choice);
  if (c.has_shown_end) return;
  const auto at = static_cast<size_t>(choice);
  const auto rest = c.has_ended ? SplitAnswer::Rest::kNone : SplitAnswer::Rest::kComes;
  const ReasoningStream::Parts parts = shown_[at].answer.next(c.completion.text, rest);
  const bool has_text = !parts.reasoning.empty() || !parts.content.empty();
  const bool has_tokens = request_.logprobs && c.shown_tokens < c.completion.ids.size();
  if (!has_text && !has_tokens && !c.has_ended && !c.report) return;
  if (!std::exchange(shown_[at].has_role, true)) {
    begin_chunk(at, out);
    out += R"("role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null)";
    end_chunk(out);
  }
  begin_chunk(at, out);
  std::string delta;
  append_parts(parts, delta);
  if (!delta.empty()) out += std::string_view(delta).substr(2);
  out += R"(}, "logprobs": )";
  append_logprobs(output_tokens(c, c.shown_tokens), out);
  out += R"(, "finish_reason": )";
  out += c.has_ended ? str('"', name_of(c.completion.finish_reason), '"') : "null";
  append_own(c, out);
  end_chunk(out);
  c.shown_tokens = c.completion.ids.size(), c.has_shown_end = c.has_ended;
}

void ChatResponse::append_end(const ResponseTimes& /*times*/, std::string& out) const {
  if (request_.include_usage) {
    out += kEventBegin;
    out += object_begin(kChatChunk) + R"(, "choices": [])";
    append_usage(out);
    out += '}';
    out += kEventEnd;
  }
  out += kLastEvent;
}

void ChatResponse::append_error(const RequestError& error, std::string& out) const { append_error_event(error, out); }

}  // namespace headrace
