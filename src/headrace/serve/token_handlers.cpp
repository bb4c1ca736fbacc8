#include <algorithm>
#include <array>
#include <limits>

#include "headrace/models/model.h"
#include "headrace/serve/api_handlers.h"
#include "headrace/serve/chat_request.h"
#include "headrace/serve/request_field.h"
#include "headrace/text/json_string.h"

namespace headrace {
namespace {

// Bodies of /tokenize and /detokenize.
struct TokenRequest {
  std::string model = {};
  std::optional<std::string> prompt = {};
  ChatInput input = {};  // in place of a prompt, if it has messages
  std::optional<std::vector<int32_t>> tokens = {};
  bool add_special_tokens = true, return_token_strs = false;
};

using TokenField = RequestField<TokenRequest>;

constexpr std::array kTokenizeFields = {
    TokenField{"model", TokenField::Text{&TokenRequest::model}, "the model that runs"},
    TokenField{"prompt",
               TokenField::Other{"a string", [](TokenRequest& r, const JsonNode& text) { r.prompt = text.text(); },
                                 R"({"type": "string"})"},
               "none: it or messages are required"},
    TokenField{"messages",
               TokenField::Other{"a list of messages",
                                 [](TokenRequest& r, const JsonNode& all) { read_messages(r.input, all); },
                                 R"({"type": "array", "items": {"type": "object"}})"},
               "none"},
    TokenField{"add_special_tokens", TokenField::Flag{&TokenRequest::add_special_tokens}, "true"},
    TokenField{"return_token_strs", TokenField::Flag{&TokenRequest::return_token_strs}, "false"},
    TokenField{
        "add_generation_prompt",
        TokenField::Other{"true or false",
                          [](TokenRequest& r, const JsonNode& flag) { r.input.add_generation_prompt = flag.flag(); },
                          R"({"type": "boolean"})"},
        "true"},
    TokenField{
        "continue_final_message",
        TokenField::Other{"true or false",
                          [](TokenRequest& r, const JsonNode& flag) { r.input.continue_final_message = flag.flag(); },
                          R"({"type": "boolean"})"},
        "false"},
    TokenField{
        "chat_template_kwargs",
        TokenField::Other{"an object", [](TokenRequest& r, const JsonNode& all) { read_template_kwargs(r.input, all); },
                          R"({"type": "object"})"},
        "none"},
    TokenField{"tools", TokenField::Refused{}},
    TokenField{"chat_template", TokenField::Refused{}},
};

constexpr std::array kDetokenizeFields = {
    TokenField{"model", TokenField::Text{&TokenRequest::model}, "the model that runs"},
    TokenField{"tokens",
               TokenField::Other{"a list of token ids",
                                 [](TokenRequest& r, const JsonNode& ids) {
                                   r.tokens = ids.integers(0, std::numeric_limits<int32_t>::max());
                                 },
                                 R"({"type": "array", "items": {"type": "integer", "minimum": 0}})"},
               "none: it is required"},
};

TokenRequest read_token_request(const JsonNode& body, std::span<const TokenField> fields) {
  TokenRequest request;
  for (const JsonNode& member : body.members()) read_field(fields, request, member);
  return request;
}

std::vector<int32_t> ids_of(TokenRequest request, const ServedModel& model) {
  if (!request.input.messages.empty()) {
    if (request.input.continue_final_message) request.input.add_generation_prompt = false;
    return rendered(request.input, model).ids;
  }
  require_field(request.prompt.has_value(), "prompt", "prompt is missing, expected a string, or messages in its place");
  model.size().check_text(request.prompt->size());
  return model.tokenizer().encode(
      *request.prompt,
      {.special_tokens = SpecialTokens::kParse,
       .add_special_tokens = request.add_special_tokens ? AddSpecialTokens::kYes : AddSpecialTokens::kNo});
}

}  // namespace

Answer answer_tokenize(const JsonNode& body, const ServedModel& model, Call& /*call*/) {
  TokenRequest request = read_token_request(body, kTokenizeFields);
  model.name_for(request.model);
  const bool shows_texts = request.return_token_strs;
  const std::vector<int32_t> ids = ids_of(std::move(request), model);
  std::string out =
      str(R"({"count": )", ids.size(), R"(, "max_model_len": )", model.size().context(), R"(, "tokens": )");
  append_list(ids, out, [&out](int32_t id) { out += str(id); });
  out += R"(, "token_strs": )";
  if (shows_texts) {
    append_list(ids, out, [&](int32_t id) { append_json_string(model.tokenizer().id_to_token(id).value_or(""), out); });
  } else {
    out += "null";
  }
  return out + '}';
}

Answer answer_detokenize(const JsonNode& body, const ServedModel& model, Call& /*call*/) {
  const TokenRequest request = read_token_request(body, kDetokenizeFields);
  model.name_for(request.model);
  require_field(request.tokens.has_value(), "tokens", "tokens is missing, expected a list of token ids");
  const int32_t vocab = model.tokenizer().vocab_size();
  for (const int32_t id : *request.tokens) {
    require_field(id < vocab, "tokens", str("tokens has ", id, ", expected ids below ", vocab));
  }
  return str(R"({"prompt": )", json_string(model.tokenizer().decode(*request.tokens)), '}');
}

// Evaluation harnesses ask for it before they use /tokenize.
std::string tokenizer_info_json(const ServedModel& model) {
  const Tokenizer& tokenizer = model.tokenizer();
  const auto name_of_first = [&](std::span<const int32_t> ids) {
    const auto name = ids.empty() ? std::nullopt : tokenizer.id_to_token(ids.front());
    return name ? json_string(*name) : "null";
  };
  return str(R"({"vocab_size": )", tokenizer.vocab_size(), R"(, "max_model_len": )", model.size().context(),
             R"(, "bos_token": )", name_of_first(tokenizer.prefix_ids()), R"(, "eos_token": )",
             name_of_first(model.llm().model_info().eos_ids), R"(, "chat_template": )",
             model.chat() != nullptr ? json_string(model.chat()->source()) : "null", '}');
}

std::vector<FieldDescription> tokenize_fields() {
  std::vector<FieldDescription> fields;
  describe_fields<TokenRequest>(kTokenizeFields, fields);
  return fields;
}

std::vector<FieldDescription> detokenize_fields() {
  std::vector<FieldDescription> fields;
  describe_fields<TokenRequest>(kDetokenizeFields, fields);
  return fields;
}

}  // namespace headrace
