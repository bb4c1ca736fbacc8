#include "headrace/serve/chat_request.h"

#include <algorithm>
#include <array>
#include <limits>

#include "headrace/core/printable.h"
#include "headrace/serve/request_field.h"
#include "headrace/serve/template_values.h"

namespace headrace {
namespace {

using ChatField = RequestField<ChatRequest>;

constexpr size_t kMostMessages = 100'000;
constexpr std::string_view kContent = "a text, or a list of parts of type text";
constexpr std::string_view kMessagesSchema =
    R"({"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role"], "properties": {)"
    R"("role": {"type": "string"}, "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array", )"
    R"("items": {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, )"
    R"("text": {"type": "string"}}}}]}}}})";
constexpr std::string_view kKwargsSchema =
    R"({"type": "object", "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]*$"}})";
constexpr std::string_view kFormatSchema =
    R"({"type": "object", "required": ["type"], "properties": {"type": {"const": "text"}}})";

// Names that the server itself gives a template, or that would be more than a value.
constexpr std::array<std::string_view, 11> kReserved = {
    "messages",  "tools",       "documents", "chat_template",         "tokenize", "add_generation_prompt", "bos_token",
    "eos_token", "return_dict", "tokenizer", "continue_final_message"};

// The texts of a message's parts, each on lines of its own, as vLLM joins them.
std::string text_of_parts(const JsonNode& parts) {
  std::string text;
  bool is_first = true;
  for (const JsonNode& part : parts.items(kMostMessages)) {
    if (part.is_string()) {  // some clients send plain texts
      text += (is_first ? "" : "\n") + part.text();
      is_first = false;
      continue;
    }
    std::optional<std::string> type, own;
    for (const JsonNode& member : part.members(part.name() + ".")) {
      if (member.name().ends_with(".type")) type = member.text();
      if (member.name().ends_with(".text") && !member.is_null()) own = member.text();
    }
    require_field(
        type.value_or("text") == "text", part.name() + ".type",
        str(part.name(), ".type is '", printable(type.value_or("")), "', expected text: nothing else is read"));
    require_field(own.has_value(), part.name() + ".text", str(part.name(), ".text is missing, expected a string"));
    text += (is_first ? "" : "\n") + *own;
    is_first = false;
  }
  return text;
}

TemplateValue content_of(const JsonNode& content) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.text();
  if (content.is_array()) return text_of_parts(content);
  content.refuse(kContent);
}

// Templates read the arguments of a call as an object; clients send them as text.
TemplateValue call_arguments(const JsonNode& arguments) {
  if (!arguments.is_string()) return template_value(arguments);
  try {
    return template_value(JsonBody(arguments.text(), arguments.name()).root());
  } catch (const RequestError&) {
    return arguments.text();
  }
}

TemplateValue tool_call(const JsonNode& call) {
  TemplateValue::Object out;
  const std::string prefix = call.name() + ".";
  for (const JsonNode& member : call.members(prefix)) {
    const std::string name = member.name().substr(prefix.size());
    if (name != "function" || !member.is_object()) {
      out.emplace_back(name, template_value(member));
      continue;
    }
    TemplateValue::Object function;
    const std::string inner = member.name() + ".";
    for (const JsonNode& part : member.members(inner)) {
      const std::string part_name = part.name().substr(inner.size());
      function.emplace_back(part_name, part_name == "arguments" ? call_arguments(part) : template_value(part));
    }
    out.emplace_back(name, std::move(function));
  }
  return out;
}

TemplateValue tool_calls(const JsonNode& calls) {
  if (!calls.is_array()) return template_value(calls);
  TemplateValue::Array all;
  for (const JsonNode& call : calls.items(kMostMessages)) {
    all.push_back(call.is_object() ? tool_call(call) : template_value(call));
  }
  return all;
}

TemplateValue message_of(const JsonNode& message) {
  TemplateValue::Object out;
  bool has_role = false;
  const std::string prefix = message.name() + ".";
  for (const JsonNode& member : message.members(prefix)) {
    const std::string name = member.name().substr(prefix.size());
    if (name == "role") {
      has_role = true;
      out.emplace_back(name, member.text());
    } else if (name == "content") {
      out.emplace_back(name, content_of(member));
    } else if (name == "images" || name == "audio") {
      require_field(member.is_null() || (member.is_array() && member.items(1).empty()), member.name(),
                    str(member.name(), " is not supported: nothing but text is read"));
    } else if (name == "tool_calls") {
      out.emplace_back(name, tool_calls(member));
    } else {
      out.emplace_back(name, template_value(member));
    }
  }
  require_field(has_role, prefix + "role", str(prefix, "role is missing, expected a string"));
  return out;
}

void read_chat_messages(ChatRequest& r, const JsonNode& messages) { read_messages(r.input, messages); }
void read_kwargs(ChatRequest& r, const JsonNode& kwargs) { read_template_kwargs(r.input, kwargs); }

void set_chat_tokens(ChatRequest& r, int64_t value) { r.params.max_tokens = static_cast<int32_t>(value); }
void set_top_logprobs(ChatRequest& r, int64_t value) { r.top_logprobs = static_cast<int32_t>(value); }

void read_generation_prompt(ChatRequest& r, const JsonNode& flag) { r.add_generation_prompt = flag.flag(); }
void read_continue(ChatRequest& r, const JsonNode& flag) { r.input.continue_final_message = flag.flag(); }

void read_effort(ChatRequest& r, const JsonNode& effort) {
  r.input.kwargs.emplace_back("reasoning_effort", effort.text());
}

// `member` of an object, or the text itself, must be one of `words`.
void require_word(const JsonNode& node, std::string_view member, std::initializer_list<std::string_view> words) {
  std::string text, name = node.name();
  if (node.is_object()) {
    name += "." + std::string(member);
    for (const JsonNode& one : node.members(node.name() + ".")) {
      if (one.name() == name) text = one.text();
    }
  } else {
    text = node.text();
  }
  require_field(std::ranges::find(words, text) != words.end(), node.name(),
                str(name, " is '", printable(text), "', which is not supported, expected ", *words.begin()));
}

void read_format(ChatRequest& /*r*/, const JsonNode& format) { require_word(format, "type", {"text"}); }
void read_tool_choice(ChatRequest& /*r*/, const JsonNode& choice) { require_word(choice, "type", {"none", "auto"}); }
void read_modalities(ChatRequest& /*r*/, const JsonNode& all) {
  for (const JsonNode& one : all.items(16)) require_word(one, "", {"text"});
}

constexpr std::array kChatFields = {
    ChatField{"messages", ChatField::Other{"a list of messages", read_chat_messages, kMessagesSchema},
              "none: it is required"},
    ChatField{"max_tokens", ChatField::Integer{1, kMostTokens, set_chat_tokens},
              "the model's max_new_tokens, else what the context holds"},
    ChatField{"max_completion_tokens", ChatField::Integer{1, kMostTokens, set_chat_tokens}, "what the context holds"},
    ChatField{"logprobs", ChatField::Flag{&ChatRequest::wants_logprobs}, "false"},
    ChatField{"top_logprobs", ChatField::Integer{0, kMostShownLogprobs, set_top_logprobs}, "0"},
    ChatField{"add_generation_prompt",
              ChatField::Other{"true or false", read_generation_prompt, R"({"type": "boolean"})"}, "true"},
    ChatField{"continue_final_message", ChatField::Other{"true or false", read_continue, R"({"type": "boolean"})"},
              "false"},
    ChatField{"chat_template_kwargs", ChatField::Other{"an object", read_kwargs, kKwargsSchema}, "none"},
    ChatField{"reasoning_effort", ChatField::Other{"a string", read_effort, R"({"type": "string"})"},
              "none: the template's"},
    ChatField{"response_format", ChatField::Other{"an object of type text", read_format, kFormatSchema}, "none"},
    ChatField{"tool_choice",
              ChatField::Other{"\"none\" or \"auto\"", read_tool_choice, R"({"enum": ["none", "auto"]})"}, "\"none\""},
    ChatField{"modalities",
              ChatField::Other{"[\"text\"]", read_modalities, R"({"type": "array", "items": {"const": "text"}})"},
              "[\"text\"]"},
    ChatField{"parallel_tool_calls", ChatField::Ignored{}},
    ChatField{"prediction", ChatField::Ignored{}},
    ChatField{"safety_identifier", ChatField::Ignored{}},
    ChatField{"prompt_cache_key", ChatField::Ignored{}},
    ChatField{"tools", ChatField::Refused{}},
    ChatField{"functions", ChatField::Refused{}},
    ChatField{"function_call", ChatField::Refused{}},
    ChatField{"audio", ChatField::Refused{}},
    ChatField{"web_search_options", ChatField::Refused{}},
    ChatField{"verbosity", ChatField::Refused{}},
    ChatField{"chat_template", ChatField::Refused{}},
    ChatField{"documents", ChatField::Refused{}},
    ChatField{"echo", ChatField::Refused{}},
    ChatField{"best_of", ChatField::Refused{}},
    ChatField{"prompt_logprobs", ChatField::Refused{}},
};

void check_chat(ChatRequest& r) {
  require_field(!r.input.messages.empty(), "messages", "messages is missing, expected a list of one message or more");
  require_field(r.wants_logprobs || r.top_logprobs.value_or(0) == 0, "top_logprobs",
                str("top_logprobs is ", r.top_logprobs.value_or(0), ", expected logprobs to be true"));
  const bool continues = r.input.continue_final_message;
  r.input.add_generation_prompt = r.add_generation_prompt.value_or(!continues);
  require_field(!continues || !r.input.add_generation_prompt, "continue_final_message",
                "continue_final_message is true, expected add_generation_prompt to be false");
  check_common(r);
  if (r.wants_logprobs) r.logprobs = r.top_logprobs.value_or(0);
  r.params.top_logprobs = r.logprobs.value_or(0);
}

}  // namespace

void read_messages(ChatInput& input, const JsonNode& messages) {
  const std::vector<JsonNode> all = messages.items(kMostMessages + 1);
  require_field(!all.empty(), "messages", "messages is an empty list, expected one message or more");
  require_field(all.size() <= kMostMessages, "messages", str("messages has more than ", kMostMessages, " of them"));
  for (const JsonNode& message : all) input.messages.push_back(message_of(message));
}

void read_template_kwargs(ChatInput& input, const JsonNode& kwargs) {
  const std::string prefix = kwargs.name() + ".";
  for (const JsonNode& member : kwargs.members(prefix)) {
    std::string name = member.name().substr(prefix.size());
    const bool is_reserved =
        name.empty() || name.starts_with('_') || std::ranges::find(kReserved, name) != kReserved.end();
    require_field(!is_reserved, kwargs.name(),
                  str(kwargs.name(), " has '", printable(name), "', which no request may set"));
    std::erase_if(input.kwargs, [&name](const auto& one) { return one.first == name; });
    input.kwargs.emplace_back(std::move(name), template_value(member));
  }
}

ChatRequest chat_request(const JsonNode& body, const SamplingParams& defaults) {
  ChatRequest request;
  request.params = defaults;
  for (const JsonNode& member : body.members()) {
    const bool is_known = read_field<ChatRequest>(kChatFields, request, member) ||
                          read_field<ApiRequest>(common_fields(), request, member);
    if (!is_known) request.unknown_fields.push_back(member.name());
  }
  check_chat(request);
  return request;
}

std::vector<FieldDescription> chat_fields() {
  std::vector<FieldDescription> fields;
  describe_fields<ChatRequest>(kChatFields, fields);
  describe_fields(common_fields(), fields);
  return fields;
}

RenderedChat rendered(const ChatInput& input, const ServedModel& model) {
  if (model.chat() == nullptr)
    throw RequestError(400,
                       "the model has no chat template: /v1/completions takes a text as it is, and the server's option "
                       "--chat-template gives it one",
                       "messages", "no_chat_template");
  try {
    ChatPrompt prompt = model.chat()->render(input);
    model.size().check_text(prompt.text.size());
    RenderedChat chat{.ids = model.encode(prompt)};
    model.size().check(chat.ids.size());
    require_field(!chat.ids.empty(), "messages", "messages make an empty prompt, expected a token or more");
    chat.text = std::move(prompt.text);
    return chat;
  } catch (const RequestError&) {
    throw;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    throw RequestError(400, error.what(), "messages", "chat_template_error");
  }
}

}  // namespace headrace
