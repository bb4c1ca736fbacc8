#include "headrace/serve/completion_response.h"

#include <algorithm>
#include <utility>

#include "headrace/serve/server_sent_events.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

constexpr std::string_view kTextCompletion = "text_completion";

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

CompletionResponse::CompletionResponse(CompletionRequest request, ResponseInfo info,
                                       std::vector<std::vector<int32_t>> prompts, const Tokenizer& tokenizer)
    : Response(request, std::move(info), std::move(prompts), tokenizer),
      texts_(std::move(request.prompts)),
      echo_(request.echo),
      prompt_logprobs_(request.prompt_logprobs),
      offsets_(static_cast<size_t>(num_open_)) {}

std::string CompletionResponse::json(const ResponseTimes& /*times*/) const {
  std::string out = object_begin(kTextCompletion) + R"(, "choices": )";
  std::vector<std::pair<size_t, size_t>> places;  // prompt, choice
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t c = 0; c < prompts_[p].choices.size(); ++c) places.emplace_back(p, c);
  }
  append_list(places, out, [&](const auto& place) { append_choice(place.first, place.second, out); });
  append_usage(out);
  out += '}';
  return out;
}

std::string CompletionResponse::echoed(size_t prompt) const {
  const auto* text = std::get_if<std::string>(&texts_[prompt]);
  if (text != nullptr) return *text;
  return tokenizer_.decode(prompts_[prompt].ids,
                           request_.skip_special_tokens ? SpecialText::kSkip : SpecialText::kKeep);
}

std::string_view CompletionResponse::reason_of(const Choice& choice) const {
  return request_.no_output ? "length" : name_of(choice.completion.finish_reason);
}

void CompletionResponse::append_choice(size_t prompt, size_t choice, std::string& out) const {
  const Choice& c = prompts_[prompt].choices[choice];
  std::string text = echo_ ? echoed(prompt) : "";
  if (!request_.no_output) text += c.completion.text;
  out += str(R"({"index": )", index_of(prompt, choice), R"(, "text": )");
  append_json_string(text, out);
  out += R"(, "logprobs": )";
  if (request_.logprobs) {
    append_logprobs(shown_tokens(prompts_[prompt], c, 0), 0, out);
  } else {
    out += "null";
  }
  out += str(R"(, "finish_reason": ")", reason_of(c), '"');
  if (prompt_logprobs_) append_prompt_logprobs(prompts_[prompt], out);
  append_own_whole(c, out);
  out += '}';
}

// The first piece of a choice has the echo. A piece without text or tokens is left out.
void CompletionResponse::append_news(int32_t prompt, int32_t choice, std::string& out) {
  Choice& c = choice_at(prompt, choice);
  if (c.has_shown_end) return;
  const size_t at = index_of(static_cast<size_t>(prompt), static_cast<size_t>(choice));
  const bool is_first = c.shown_tokens == 0 && !c.completion.ids.empty(), echoes = echo_ && is_first;
  std::string text = echoes ? echoed(static_cast<size_t>(prompt)) : "";
  if (!request_.no_output) text += std::string_view(c.completion.text).substr(c.shown_bytes);
  const bool has_tokens = request_.logprobs && c.shown_tokens < c.completion.ids.size();
  if (text.empty() && !has_tokens && !c.has_ended && !c.report && !(prompt_logprobs_ && is_first)) return;
  out += kEventBegin;
  out += object_begin(kTextCompletion);
  out += str(R"(, "choices": [{"index": )", at, R"(, "text": )");
  append_json_string(text, out);
  out += R"(, "logprobs": )";
  if (request_.logprobs) {
    const std::vector<Token> tokens = shown_tokens(prompt_at(prompt), c, c.shown_tokens);
    append_logprobs(tokens, offsets_[at], out);
    for (const Token& token : tokens) offsets_[at] += num_characters(token.text);
  } else {
    out += "null";
  }
  out += R"(, "finish_reason": )";
  out += c.has_ended ? str('"', reason_of(c), '"') : "null";
  if (prompt_logprobs_ && is_first) append_prompt_logprobs(prompt_at(prompt), out);
  append_own(c, out);
  out += request_.include_usage ? R"(}], "usage": null})" : "}]}";
  out += kEventEnd;
  c.shown_bytes = c.completion.text.size(), c.shown_tokens = c.completion.ids.size(), c.has_shown_end = c.has_ended;
}

void CompletionResponse::append_end(const ResponseTimes& /*times*/, std::string& out) const {
  if (request_.include_usage) {
    out += kEventBegin;
    out += object_begin(kTextCompletion) + R"(, "choices": [])";
    append_usage(out);
    out += '}';
    out += kEventEnd;
  }
  out += kLastEvent;
}

void CompletionResponse::append_error(const RequestError& error, std::string& out) const {
  append_error_event(error, out);
}

// The prompt's tokens are shown if it is echoed; `from`: in the output.
std::vector<Response::Token> CompletionResponse::shown_tokens(const Prompt& prompt, const Choice& choice,
                                                              size_t from) const {
  std::vector<Token> tokens;
  if (echo_ && from == 0) {
    tokens.push_back(token_at(prompt.ids.front(), {}, {}));
    for (const PromptToken& p : prompt.logprobs) tokens.push_back(token_at(p.token.id, p.token.logprob, p.top));
  }
  std::ranges::move(output_tokens(choice, from), std::back_inserter(tokens));
  return tokens;
}

// Appends {"text": logprob, ...} of the likeliest tokens and of `token` itself. Of tokens with the same text the
// likelier one is shown.
void CompletionResponse::append_top(const Token& token, std::string& out) const {
  if (!token.logprob) {
    out += "null";
    return;
  }
  std::vector<std::pair<std::string, float>> shown;
  const auto show = [&](int32_t id, float logprob) {
    std::string text = text_of(id);
    const bool is_new = std::ranges::find(shown, text, &std::pair<std::string, float>::first) == shown.end();
    if (is_new) shown.emplace_back(std::move(text), logprob);
  };
  for (const TokenLogprob& t : token.top) show(t.id, t.id == token.id ? *token.logprob : t.logprob);
  show(token.id, *token.logprob);
  const char* before = "{";
  for (const auto& [text, logprob] : shown) {
    out += std::exchange(before, ", ");
    append_json_string(text, out);
    out += ": ";
    append_json_number(logprob, out);
  }
  out += '}';
}

// `offset`: of the first token in the choice's text, in characters.
void CompletionResponse::append_logprobs(const std::vector<Token>& tokens, int64_t offset, std::string& out) const {
  out += R"({"tokens": )";
  append_list(tokens, out, [&](const Token& t) { append_json_string(t.text, out); });
  out += R"(, "token_logprobs": )";
  append_list(tokens, out, [&](const Token& t) {
    if (t.logprob) {
      append_json_number(*t.logprob, out);
    } else {
      out += "null";
    }
  });
  out += R"(, "top_logprobs": )";
  append_list(tokens, out, [&](const Token& t) { append_top(t, out); });
  out += R"(, "text_offset": )";
  append_list(tokens, out, [&](const Token& t) {
    out += str(offset);
    offset += num_characters(t.text);
  });
  out += '}';
}

void CompletionResponse::append_prompt_logprobs(const Prompt& prompt, std::string& out) const {
  const auto most = static_cast<size_t>(prompt_logprobs_.value_or(0));
  out += R"(, "prompt_logprobs": [null)";
  for (const PromptToken& p : prompt.logprobs) {
    const char* before = ", {";
    const auto append = [&](int32_t id, float logprob) {
      out += str(std::exchange(before, ", "), '"', id, R"(": {"logprob": )");
      append_json_number(logprob, out);
      out += R"(, "decoded_token": )";
      append_json_string(text_of(id), out);
      out += '}';
    };
    append(p.token.id, p.token.logprob);
    for (size_t i = 0; i < std::min(most, p.top.size()); ++i) {
      if (p.top[i].id != p.token.id) append(p.top[i].id, p.top[i].logprob);
    }
    out += '}';
  }
  out += ']';
}

}  // namespace headrace
