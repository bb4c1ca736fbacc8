#include "headrace/serve/completion_response.h"

#include <algorithm>
#include <array>
#include <utility>

#include "headrace/text/json_string.h"

namespace headrace {
namespace {

// Returns the text of one token by itself; U+FFFD stands for a part of a character.
std::string text_of(const Tokenizer& tokenizer, int32_t id) { return tokenizer.decode(std::array{id}); }

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// Appends `items`, each by `append`, with commas between them.
template <class Items, class Append>
void append_list(const Items& items, std::string& out, const Append& append) {
  const char* before = "[";
  for (const auto& item : items) {
    out += std::exchange(before, ", ");
    append(item);
  }
  out += items.empty() ? "[]" : "]";
}

}  // namespace

// A token of a choice that the response shows, and its likeliest rivals.
struct CompletionCollector::Token {
  int32_t id;
  std::string text;
  std::optional<float> logprob;  // none: the first token of a prompt
  std::span<const TokenLogprob> top;
};

CompletionCollector::Choice::Choice(const Tokenizer& tokenizer, const CompletionRequest& request)
    : stream(tokenizer, request.params.stop, request.skip_special_tokens ? SpecialText::kSkip : SpecialText::kKeep) {}

CompletionCollector::CompletionCollector(CompletionRequest request, std::vector<std::vector<int32_t>> prompts,
                                         const Tokenizer& tokenizer)
    : request_(std::move(request)), tokenizer_(tokenizer), num_open_(request_.num_choices()) {
  for (std::vector<int32_t>& ids : prompts) {
    Prompt& prompt = prompts_.emplace_back();
    prompt.ids = std::move(ids);
    for (int32_t i = 0; i < request_.n; ++i) prompt.choices.emplace_back(tokenizer, request_);
  }
}

CompletionCollector::Then CompletionCollector::push(int32_t prompt, int32_t choice,
                                                    std::span<const StepOutput> outputs) {
  Prompt& of = prompts_.at(static_cast<size_t>(prompt));
  Choice& c = of.choices.at(static_cast<size_t>(choice));
  for (const StepOutput& output : outputs) {
    if (c.has_ended) break;
    if (of.logprobs.empty()) of.logprobs = output.prompt_logprobs;
    c.stream.push(output, c.completion);
    if (request_.logprobs && c.top.size() < c.completion.ids.size()) c.top.push_back(output.top);
    c.has_ended = c.stream.stopped() || output.finish_reason.has_value();
    if (!c.has_ended) continue;
    --num_open_;
    if (c.stream.stopped()) c.completion.finish_reason = FinishReason::kStop;
    if (!output.finish_reason) return Then::kAbort;
  }
  return Then::kGoOn;
}

CompletionCollector::Usage CompletionCollector::usage() const {
  Usage usage;
  for (const Prompt& prompt : prompts_) {
    usage.prompt_tokens += std::ssize(prompt.ids);
    for (const Choice& choice : prompt.choices) {
      if (!request_.no_output) usage.completion_tokens += std::ssize(choice.completion.ids);
    }
    usage.cached_tokens += prompt.choices.front().completion.num_reused;
  }
  return usage;
}

std::string CompletionCollector::json(const CompletionHead& head) const {
  std::string out = R"({"id": )";
  append_json_string(head.id, out);
  out += str(R"(, "object": "text_completion", "created": )", head.created, R"(, "model": )");
  append_json_string(head.model, out);
  out += R"(, "choices": )";
  std::vector<std::pair<size_t, size_t>> places;  // prompt, choice
  for (size_t p = 0; p < prompts_.size(); ++p) {
    for (size_t c = 0; c < prompts_[p].choices.size(); ++c) places.emplace_back(p, c);
  }
  append_list(places, out, [&](const auto& place) { append_choice(place.first, place.second, out); });
  append_usage(head, out);
  out += '}';
  return out;
}

std::string CompletionCollector::echoed(size_t prompt) const {
  const auto* text = std::get_if<std::string>(&request_.prompts[prompt]);
  if (text != nullptr) return *text;
  return tokenizer_.decode(prompts_[prompt].ids,
                           request_.skip_special_tokens ? SpecialText::kSkip : SpecialText::kKeep);
}

void CompletionCollector::append_choice(size_t prompt, size_t choice, std::string& out) const {
  const Choice& c = prompts_[prompt].choices[choice];
  const size_t index = prompt * static_cast<size_t>(request_.n) + choice;
  std::string text = request_.echo ? echoed(prompt) : "";
  if (!request_.no_output) text += c.completion.text;
  out += str(R"({"index": )", index, R"(, "text": )");
  append_json_string(text, out);
  out += R"(, "logprobs": )";
  if (request_.logprobs) {
    append_logprobs(shown_tokens(prompts_[prompt], c), out);
  } else {
    out += "null";
  }
  out += str(R"(, "finish_reason": ")", request_.no_output ? "length" : name_of(c.completion.finish_reason), '"');
  if (request_.prompt_logprobs) append_prompt_logprobs(prompts_[prompt], out);
  out += '}';
}

// The prompt's tokens are shown if it is echoed.
std::vector<CompletionCollector::Token> CompletionCollector::shown_tokens(const Prompt& prompt,
                                                                          const Choice& choice) const {
  const auto most = static_cast<size_t>(request_.logprobs.value_or(0));
  const auto likeliest = [most](std::span<const TokenLogprob> top) { return top.first(std::min(most, top.size())); };
  std::vector<Token> tokens;
  const auto show = [&](int32_t id, std::optional<float> logprob, std::span<const TokenLogprob> top) {
    tokens.push_back({.id = id, .text = text_of(tokenizer_, id), .logprob = logprob, .top = likeliest(top)});
  };
  if (request_.echo) {
    show(prompt.ids.front(), {}, {});
    for (const PromptToken& p : prompt.logprobs) show(p.token.id, p.token.logprob, p.top);
  }
  for (size_t i = 0; i < choice.completion.ids.size() && !request_.no_output; ++i) {
    show(choice.completion.ids[i], choice.completion.logprobs[i], choice.top[i]);
  }
  return tokens;
}

// Appends {"text": logprob, ...} of the likeliest tokens and of `token` itself. Of tokens with the same text the
// likelier one is shown.
void CompletionCollector::append_top(const Token& token, std::string& out) const {
  if (!token.logprob) {
    out += "null";
    return;
  }
  std::vector<std::pair<std::string, float>> shown;
  const auto show = [&](int32_t id, float logprob) {
    std::string text = text_of(tokenizer_, id);
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

void CompletionCollector::append_logprobs(const std::vector<Token>& tokens, std::string& out) const {
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
  int64_t offset = 0;
  append_list(tokens, out, [&](const Token& t) {
    out += str(offset);
    offset += num_characters(t.text);
  });
  out += '}';
}

void CompletionCollector::append_prompt_logprobs(const Prompt& prompt, std::string& out) const {
  const auto most = static_cast<size_t>(request_.prompt_logprobs.value_or(0));
  out += R"(, "prompt_logprobs": [null)";
  for (const PromptToken& p : prompt.logprobs) {
    const char* before = ", {";
    const auto append = [&](int32_t id, float logprob) {
      out += str(std::exchange(before, ", "), '"', id, R"(": {"logprob": )");
      append_json_number(logprob, out);
      out += R"(, "decoded_token": )";
      append_json_string(text_of(tokenizer_, id), out);
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

void CompletionCollector::append_usage(const CompletionHead& head, std::string& out) const {
  const Usage u = usage();
  out += str(R"(, "usage": {"prompt_tokens": )", u.prompt_tokens, R"(, "completion_tokens": )", u.completion_tokens,
             R"(, "total_tokens": )", u.prompt_tokens + u.completion_tokens);
  if (head.shows_cached_tokens) out += str(R"(, "prompt_tokens_details": {"cached_tokens": )", u.cached_tokens, '}');
  out += '}';
}

}  // namespace headrace
