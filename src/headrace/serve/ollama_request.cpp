#include "headrace/serve/ollama_request.h"

#include <algorithm>
#include <array>
#include <limits>

#include "headrace/serve/chat_request.h"
#include "headrace/serve/request_field.h"

namespace headrace {
namespace {

using OllamaField = RequestField<OllamaRequest>;

constexpr std::string_view kMessagesOfRoles =
    R"({"type": "array", "items": {"type": "object", "required": ["role"], "properties": {"role": {"type": "string"}, )"
    R"("content": {"type": ["string", "null"]}}}})";
constexpr std::string_view kObjectSchema = R"({"type": "object"})", kTextSchema = R"({"type": "string"})";

void set_num_predict(OllamaRequest& r, int64_t value) {
  if (value < 0) {  // until the model ends, or the context is full
    r.params.max_tokens = kMostTokens;
    return;
  }
  require_field(value > 0, "options.num_predict", "options.num_predict is 0, expected 1 or more, or -1");
  r.params.max_tokens = static_cast<int32_t>(value);
}
void set_ollama_top_k(OllamaRequest& r, int64_t value) {
  r.params.top_k = static_cast<int32_t>(std::max<int64_t>(0, value));
}
void set_ollama_seed(OllamaRequest& r, int64_t value) {
  if (value >= 0) r.params.seed = static_cast<uint64_t>(value);
}
void read_ollama_stop(OllamaRequest& r, const JsonNode& stop) { read_stop(r, stop); }

using P = SamplingParams;
constexpr std::array kOllamaOptionFields = {
    OllamaField{"temperature", OllamaField::Number{0, 100, &P::temperature}},
    OllamaField{"top_k", OllamaField::Integer{-1, kMostTokens, set_ollama_top_k}},
    OllamaField{"top_p", OllamaField::Number{1e-6, 1, &P::top_p}},
    OllamaField{"min_p", OllamaField::Number{0, 1, &P::min_p}},
    OllamaField{"repeat_penalty", OllamaField::Number{0.01, 100, &P::repetition_penalty}},
    OllamaField{"presence_penalty", OllamaField::Number{-2, 2, &P::presence_penalty}},
    OllamaField{"frequency_penalty", OllamaField::Number{-2, 2, &P::frequency_penalty}},
    OllamaField{"seed", OllamaField::Integer{-1, std::numeric_limits<int64_t>::max(), set_ollama_seed}},
    OllamaField{"num_predict", OllamaField::Integer{-2, kMostTokens, set_num_predict}},
    OllamaField{"stop", OllamaField::Other{"a string or a list of strings", read_ollama_stop, kTextSchema}},
};

void read_options(OllamaRequest& r, const JsonNode& options) {
  const std::string prefix = options.name() + ".";
  for (const JsonNode& option : options.members(prefix)) {
    read_field<OllamaRequest>(kOllamaOptionFields, r, option.named(option.name().substr(prefix.size())));
  }
}

void read_ollama_messages(OllamaRequest& r, const JsonNode& messages) {
  if (!messages.items(1).empty()) read_messages(r.input, messages);
}

// true, false, or how much: "low", "medium", "high".
void read_think(OllamaRequest& r, const JsonNode& think) {
  const bool thinks = think.is_string() || think.flag();
  r.input.kwargs.emplace_back("enable_thinking", thinks);
  if (think.is_string()) r.input.kwargs.emplace_back("reasoning_effort", think.text());
}

// An empty text asks for none.
void read_ollama_format(OllamaRequest& /*r*/, const JsonNode& format) {
  require_field(format.is_string() && format.text().empty(), "format", "format is not supported");
}

constexpr OllamaField kOllamaThink{
    "think", OllamaField::Other{"true or false", read_think, R"({"type": ["boolean", "string"]})"}, "the template's"},
    kOllamaFormat{"format", OllamaField::Other{"an empty string", read_ollama_format, R"({"const": ""})"}, "none"},
    kOllamaOptions{"options", OllamaField::Other{"an object", read_options, kObjectSchema}, "none"},
    kOllamaModel{"model", OllamaField::Text{&OllamaRequest::model}, "the model that runs"},
    kOllamaStream{"stream", OllamaField::Flag{&OllamaRequest::stream}, "true"},
    kOllamaKeepAlive{"keep_alive", OllamaField::Ignored{}};

constexpr std::array kOllamaChatFields = {
    kOllamaModel,
    kOllamaStream,
    kOllamaOptions,
    kOllamaThink,
    kOllamaFormat,
    kOllamaKeepAlive,
    OllamaField{"messages", OllamaField::Other{"a list of messages", read_ollama_messages, kMessagesOfRoles}, "none"},
    OllamaField{"tools", OllamaField::Refused{}},
};

constexpr std::array kOllamaGenerateFields = {
    kOllamaModel,
    kOllamaStream,
    kOllamaOptions,
    kOllamaThink,
    kOllamaFormat,
    kOllamaKeepAlive,
    OllamaField{"prompt", OllamaField::Text{&OllamaRequest::prompt}, "none"},
    OllamaField{"system", OllamaField::Text{&OllamaRequest::system}, "none"},
    OllamaField{"raw", OllamaField::Flag{&OllamaRequest::raw}, "false"},
    OllamaField{"suffix", OllamaField::Refused{}},
    OllamaField{"images", OllamaField::Refused{}},
    OllamaField{"template", OllamaField::Refused{}},
    OllamaField{"context", OllamaField::Refused{}},
};

OllamaRequest read_ollama(const JsonNode& body, const SamplingParams& defaults, std::span<const OllamaField> fields) {
  OllamaRequest request;
  request.params = defaults;
  request.stream = true;
  for (const JsonNode& member : body.members()) {
    if (!read_field(fields, request, member)) request.unknown_fields.push_back(member.name());
  }
  request.model = without_tag(request.model);
  return request;
}

}  // namespace

std::string without_tag(const std::string& model) {
  constexpr std::string_view kLatest = ":latest";
  return model.ends_with(kLatest) ? model.substr(0, model.size() - kLatest.size()) : model;
}

OllamaRequest ollama_chat_request(const JsonNode& body, const SamplingParams& defaults) {
  return read_ollama(body, defaults, kOllamaChatFields);
}

OllamaRequest ollama_generate_request(const JsonNode& body, const SamplingParams& defaults) {
  return read_ollama(body, defaults, kOllamaGenerateFields);
}

std::vector<FieldDescription> ollama_chat_fields() {
  std::vector<FieldDescription> fields;
  describe_fields<OllamaRequest>(kOllamaChatFields, fields);
  return fields;
}

std::vector<FieldDescription> ollama_generate_fields() {
  std::vector<FieldDescription> fields;
  describe_fields<OllamaRequest>(kOllamaGenerateFields, fields);
  return fields;
}

}  // namespace headrace
