#include "headrace/serve/response.h"

#include <algorithm>
#include <array>
#include <utility>

#include "headrace/text/json_string.h"

namespace headrace {
namespace {

std::string_view name_of(PrefixMiss::Why why) {
  using Why = PrefixMiss::Why;
  switch (why) {
    case Why::kNone: return "none";
    case Why::kNotShared: return "not_shared";
    case Why::kNewText: return "new_text";
    case Why::kOtherText: return "other_text";
    case Why::kPageEvicted: return "page_evicted";
    case Why::kStateMissing: return "state_missing";
    case Why::kStateEvicted: return "state_evicted";
  }
  return "unknown";
}

// Without the text that others have there: it may be somebody's secret.
void append_miss(const PrefixMiss& miss, const std::string& own_text, std::string& out) {
  out += str(R"("cache": {"why": ")", name_of(miss.why), R"(", "cached_tokens": )", miss.position,
             R"(, "matching_tokens": )", miss.num_matching, R"(, "computed_tokens": )", miss.num_computed,
             R"(, "explanation": )");
  append_json_string(to_string(miss), out);
  out += R"(, "own_text": )";
  append_json_string(own_text, out);
  out += '}';
}

void append_tokens(const std::vector<std::optional<StepReport::Token>>& tokens, const Tokenizer& tokenizer,
                   std::string& out) {
  append_list(tokens, out, [&](const std::optional<StepReport::Token>& token) {
    if (!token) {
      out += "null";
      return;
    }
    out += str(R"({"position": )", token->position, R"(, "id": )", token->id, R"(, "text": )");
    append_json_string(tokenizer.decode(std::array{token->id}), out);
    out += R"(, "confidence": )";
    append_json_number(token->confidence, out);
    out += '}';
  });
}

void append_report(const StepReport& report, const Tokenizer& tokenizer, std::string& out) {
  out += str(R"("denoise": {"step": )", report.step, R"(, "blocks": )");
  append_list(report.blocks, out, [&](const StepReport::Block& block) {
    out += str(R"({"begin": )", block.begin, R"(, "end": )", block.end, R"(, "masked": )", block.num_masked, '}');
  });
  out += R"(, "decided": )";
  append_tokens({report.decided.begin(), report.decided.end()}, tokenizer, out);
  out += R"(, "pending": )";
  append_tokens(report.pending, tokenizer, out);
  out += '}';
}

}  // namespace

Response::Choice::Choice(const Tokenizer& tokenizer, const ApiRequest& request)
    : stream(tokenizer, request.params.stop, request.skip_special_tokens ? SpecialText::kSkip : SpecialText::kKeep) {}

Response::Response(ApiRequest request, ResponseInfo info, std::vector<std::vector<int32_t>> prompts,
                   const Tokenizer& tokenizer)
    : request_(std::move(request)),
      info_(std::move(info)),
      tokenizer_(tokenizer),
      num_open_(request_.n * static_cast<int32_t>(prompts.size())) {
  for (std::vector<int32_t>& ids : prompts) {
    Prompt& prompt = prompts_.emplace_back();
    prompt.ids = std::move(ids);
    for (int32_t i = 0; i < request_.n; ++i) prompt.choices.emplace_back(tokenizer, request_);
  }
}

Response::Then Response::push(int32_t prompt, const GenerationEvent& event) {
  Prompt& of = prompt_at(prompt);
  Choice& c = choice_at(prompt, event.choice);
  if (event.miss) c.miss = event.miss;
  if (event.report && !c.has_ended) c.report = event.report;
  for (const StepOutput& output : event.outputs) {
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

Response::Usage Response::usage() const {
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

const std::string& Response::text_of(int32_t prompt, int32_t choice) const {
  return choice_at(prompt, choice).completion.text;
}

FinishReason Response::finish_reason() const {
  return request_.no_output ? FinishReason::kLength : prompts_.back().choices.back().completion.finish_reason;
}

std::string Response::text_of(int32_t id) const { return tokenizer_.decode(std::array{id}); }

Response::Token Response::token_at(int32_t id, std::optional<float> logprob, std::span<const TokenLogprob> top) const {
  const auto most = static_cast<size_t>(request_.logprobs.value_or(0));
  return {.id = id, .text = text_of(id), .logprob = logprob, .top = top.first(std::min(most, top.size()))};
}

std::vector<Response::Token> Response::output_tokens(const Choice& choice, size_t from) const {
  std::vector<Token> tokens;
  if (!request_.logprobs || request_.no_output) return tokens;
  for (size_t i = from; i < choice.completion.ids.size(); ++i) {
    tokens.push_back(token_at(choice.completion.ids[i], choice.completion.logprobs[i], choice.top[i]));
  }
  return tokens;
}

void Response::append_usage(std::string& out) const {
  const Usage u = usage();
  out += str(R"(, "usage": {"prompt_tokens": )", u.prompt_tokens, R"(, "completion_tokens": )", u.completion_tokens,
             R"(, "total_tokens": )", u.prompt_tokens + u.completion_tokens);
  if (info_.shows_cached_tokens) out += str(R"(, "prompt_tokens_details": {"cached_tokens": )", u.cached_tokens, '}');
  out += '}';
}

void Response::append_own(Choice& choice, std::string& out) const {
  const bool explains = choice.has_ended && choice.miss != nullptr;
  if (!explains && !choice.report) return;
  out += R"(, "headrace": {)";
  if (explains) append_miss(*choice.miss, tokenizer_.decode(choice.miss->own_text), out);
  if (explains && choice.report) out += ", ";
  if (choice.report) append_report(*choice.report, tokenizer_, out);
  choice.report.reset();
  out += '}';
}

void Response::append_own_whole(const Choice& choice, std::string& out) const {
  if (choice.miss == nullptr) return;
  out += R"(, "headrace": {)";
  append_miss(*choice.miss, tokenizer_.decode(choice.miss->own_text), out);
  out += '}';
}

const std::string& Response::object_begin(std::string_view object) const {
  if (!object_begin_.empty()) return object_begin_;
  object_begin_ = R"({"id": )";
  append_json_string(info_.id, object_begin_);
  object_begin_ += str(R"(, "object": ")", object, R"(", "created": )", info_.created, R"(, "model": )");
  append_json_string(info_.model, object_begin_);
  return object_begin_;
}

}  // namespace headrace
