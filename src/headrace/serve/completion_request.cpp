#include "headrace/serve/completion_request.h"

#include <algorithm>
#include <array>
#include <limits>

#include "headrace/serve/prompt_size.h"
#include "headrace/serve/request_field.h"

namespace headrace {
namespace {

constexpr int32_t kDefaultTokens = 16;  // OpenAI's
constexpr int32_t kMostPrompts = 1024, kMostPromptId = std::numeric_limits<int32_t>::max();
constexpr std::string_view kPrompt = "a string, token ids, or a list of either";
constexpr std::string_view kPromptSchema =
    R"({"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "maxItems": 1024, )"
    R"("items": {"type": "string"}}, )"
    R"({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2147483647}}, )"
    R"({"type": "array", "minItems": 1, "maxItems": 1024, "items": {"type": "array", "minItems": 1, )"
    R"("items": {"type": "integer", "minimum": 0, "maximum": 2147483647}}}]})";

using CompletionField = RequestField<CompletionRequest>;

void read_prompt(CompletionRequest& r, const JsonNode& prompt) {
  if (prompt.is_string()) {
    r.prompts.emplace_back(prompt.text());
    return;
  }
  if (!prompt.is_array()) prompt.refuse(kPrompt);
  const std::vector<JsonNode> items = prompt.items(kMostPrompts + 1);
  require_field(!items.empty(), "prompt", str("prompt is an empty list, expected ", kPrompt));
  if (!items.front().is_string() && !items.front().is_array()) {
    r.prompts.emplace_back(prompt.integers(0, kMostPromptId));
    return;
  }
  require_field(items.size() <= kMostPrompts, "prompt",
                str("prompt has more than ", kMostPrompts, " entries, expected at most so many"));
  const bool are_texts = items.front().is_string();
  for (const JsonNode& item : items) {
    if (are_texts) {
      r.prompts.emplace_back(item.text());
    } else {
      r.prompts.emplace_back(item.integers(0, kMostPromptId));
    }
  }
}

void set_max_tokens(CompletionRequest& r, int64_t value) {
  r.no_output = value == 0;
  r.params.max_tokens = std::max(1, static_cast<int32_t>(value));
}
void set_best_of(CompletionRequest& r, int64_t value) { r.best_of = static_cast<int32_t>(value); }
void set_logprobs(CompletionRequest& r, int64_t value) { r.logprobs = static_cast<int32_t>(value); }
void set_prompt_logprobs(CompletionRequest& r, int64_t value) { r.prompt_logprobs = static_cast<int32_t>(value); }

constexpr std::array kCompletionFields = {
    CompletionField{"prompt", CompletionField::Other{kPrompt, read_prompt, kPromptSchema}, "none: it is required"},
    CompletionField{"max_tokens", CompletionField::Integer{0, kMostTokens, set_max_tokens}, "16"},
    CompletionField{"best_of", CompletionField::Integer{1, kMostChoices, set_best_of}, "n, the only value"},
    CompletionField{"echo", CompletionField::Flag{&CompletionRequest::echo}, "false"},
    CompletionField{"logprobs", CompletionField::Integer{0, kMostShownLogprobs, set_logprobs}, "no log-probabilities"},
    CompletionField{"prompt_logprobs", CompletionField::Integer{0, kMostShownLogprobs, set_prompt_logprobs},
                    "no log-probabilities"},
    CompletionField{"add_special_tokens", CompletionField::Flag{&CompletionRequest::add_special_tokens}, "true"},
    CompletionField{"suffix", CompletionField::Refused{}},
    CompletionField{"response_format", CompletionField::Refused{}},
};

void check_together(const CompletionRequest& r) {
  require_field(!r.prompts.empty(), "prompt", str("prompt is missing, expected ", kPrompt));
  require_field(!r.no_output || r.echo, "max_tokens", "max_tokens is 0, expected 1 or more without echo");
  require_field(r.best_of.value_or(r.n) == r.n, "best_of",
                str("best_of is ", r.best_of.value_or(0), ", expected the value of n, ", r.n));
  require_field(r.prompts.size() == 1 || !r.shows_denoising, "prompt",
                str("prompt has ", r.prompts.size(), " entries, expected one with stream_mode denoise"));
  check_common(r);
}

// The engine makes the log-probabilities that the response shows: those of an echoed prompt, too.
void set_log_probabilities(CompletionRequest& r) {
  r.params.top_logprobs = r.logprobs.value_or(0);
  r.params.prompt_logprobs = r.prompt_logprobs;
  if (r.echo && r.logprobs) r.params.prompt_logprobs = std::max(*r.logprobs, r.prompt_logprobs.value_or(0));
}

}  // namespace

CompletionRequest completion_request(const JsonNode& body, const SamplingParams& defaults) {
  CompletionRequest request;
  request.params = defaults;
  request.params.max_tokens = kDefaultTokens;
  for (const JsonNode& member : body.members()) {
    const bool is_known = read_field<CompletionRequest>(kCompletionFields, request, member) ||
                          read_field<ApiRequest>(common_fields(), request, member);
    if (!is_known) request.unknown_fields.push_back(member.name());
  }
  check_together(request);
  set_log_probabilities(request);
  return request;
}

std::vector<GenerationRequest> generation_requests(const CompletionRequest& request, const Tokenizer& tokenizer,
                                                   const PromptSize& size) {
  const EncodeOptions encoding{
      .special_tokens = SpecialTokens::kParse,
      .add_special_tokens = request.add_special_tokens ? AddSpecialTokens::kYes : AddSpecialTokens::kNo};
  std::vector<GenerationRequest> requests;
  for (const CompletionRequest::Prompt& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    if (text != nullptr) size.check_text(text->size());
    std::vector<int32_t> ids =
        text != nullptr ? tokenizer.encode(*text, encoding) : std::get<std::vector<int32_t>>(prompt);
    require_field(!ids.empty(), "prompt", "prompt is empty, expected a token or more: none is put in front of it");
    size.check(ids.size());
    requests.push_back(generation_request(request, std::move(ids)));
  }
  return requests;
}

GenerationRequest generation_request(const ApiRequest& request, std::vector<int32_t> ids) {
  return {.prompt_ids = std::move(ids),
          .params = request.params,
          .n = request.n,
          .cache_salt = request.cache_salt,
          .reports_steps = request.shows_denoising,
          .explains_cache = request.explains_cache};
}

std::vector<FieldDescription> completion_fields() {
  std::vector<FieldDescription> fields;
  describe_fields<CompletionRequest>(kCompletionFields, fields);
  describe_fields(common_fields(), fields);
  return fields;
}

}  // namespace headrace
