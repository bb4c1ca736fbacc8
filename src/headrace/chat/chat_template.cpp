#include "headrace/chat/chat_template.h"

#include <algorithm>

#include "headrace/chat/jinja_parser.h"
#include "headrace/chat/jinja_renderer.h"
#include "headrace/chat/jinja_text.h"
#include "headrace/chat/template_files.h"
#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

using jinja::Context;
using jinja::Origin;
using jinja::Value;

constexpr int64_t kSizePerInput = 16;  // what a template may make of each byte of its input
constexpr size_t kBytesPerValue = 32;  // that an input's value counts as, beside its text
constexpr std::string_view kOwnNames[] = {"messages", "tools", "add_generation_prompt"};

// Texts of an input are literal. Error: values that nest too deep.
class InputReader {
 public:
  explicit InputReader(const Context& context) : context_(context) {}

  Value read(const TemplateValue& value) {
    return std::visit([this](const auto& one) { return read_one(one); }, value.variant());
  }
  Value read_array(const TemplateValue::Array& array) {
    const Level level(*this);
    std::vector<Value> items;
    items.reserve(array.size());
    for (const TemplateValue& item : array) items.push_back(read(item));
    return context_.list(std::move(items));
  }

 private:
  struct Level {
    explicit Level(InputReader& of) : reader(of) {
      if (++of.level_ > of.context_.max_depth)
        jinja::fail("its values nest more than ", of.context_.max_depth, " deep");
    }
    ~Level() { --reader.level_; }
    InputReader& reader;
  };

  Value read_one(std::monostate) { return {}; }
  Value read_one(bool value) { return value; }
  Value read_one(int64_t value) { return value; }
  Value read_one(double value) { return value; }
  Value read_one(const std::string& value) {
    return context_.text(is_valid_utf8(value) ? value : repaired(value), Origin::kLiteral);
  }
  Value read_one(const std::shared_ptr<const TemplateValue::Array>& value) { return read_array(*value); }
  Value read_one(const std::shared_ptr<const TemplateValue::Object>& value) {
    const Level level(*this);
    std::vector<std::pair<Value, Value>> items;
    items.reserve(value->size());
    for (const auto& [name, member] : *value) {
      Value key = read_one(name);
      items.emplace_back(std::move(key), read(member));
    }
    return context_.dict(std::move(items));
  }

  const Context& context_;
  int32_t level_ = 0;
};

size_t size_of(const TemplateValue& value, int32_t depth);

size_t size_of_all(const TemplateValue::Array& array, int32_t depth) {
  size_t size = 0;
  for (const TemplateValue& item : array) size += size_of(item, depth);
  return size;
}

// The bytes of texts and values within; those beyond `depth` are not counted, because they are refused.
size_t size_of(const TemplateValue& value, int32_t depth) {
  if (depth == 0) return kBytesPerValue;
  if (const auto* text = std::get_if<std::string>(&value.variant())) return kBytesPerValue + text->size();
  if (const auto* array = std::get_if<std::shared_ptr<const TemplateValue::Array>>(&value.variant()))
    return kBytesPerValue + size_of_all(**array, depth - 1);
  size_t size = kBytesPerValue;
  if (const auto* object = std::get_if<std::shared_ptr<const TemplateValue::Object>>(&value.variant()))
    for (const auto& [name, member] : **object) size += name.size() + size_of(member, depth - 1);
  return size;
}

size_t size_of(const ChatInput& input, int32_t depth) {
  size_t size = size_of_all(input.messages, depth) + size_of(input.tools, depth);
  for (const auto& [name, value] : input.kwargs) size += name.size() + size_of(value, depth);
  return size;
}

}  // namespace

struct ChatTemplate::Parts {
  std::string source;
  jinja::Template parsed;
  std::vector<std::pair<std::string, TemplateValue>> tokens;  // bos_token and the like
};

namespace {

using Tokens = std::vector<std::pair<std::string, TemplateValue>>;

// Values of a template's variables, by symbol. What it does not read is not converted.
class Variables {
 public:
  Variables(const jinja::Template& parsed, const Context& context)
      : symbols_(parsed.symbols), reader_(context), values_(symbols_.size()) {}

  template <class Read>
  void set(std::string_view name, Read&& read) {
    const auto place = std::ranges::find(symbols_, name);
    if (place != symbols_.end()) values_[static_cast<size_t>(place - symbols_.begin())] = read(reader_);
  }
  std::vector<std::optional<Value>> take() { return std::move(values_); }

 private:
  const std::vector<std::string>& symbols_;
  InputReader reader_;
  std::vector<std::optional<Value>> values_;
};

// A special token is the template's own text.
Value token_value(const Context& context, const TemplateValue& token) {
  if (const auto* text = std::get_if<std::string>(&token.variant())) return context.text(*text);
  std::vector<Value> all;
  for (const TemplateValue& one : *std::get<std::shared_ptr<const TemplateValue::Array>>(token.variant()))
    all.push_back(token_value(context, one));
  return context.list(std::move(all));
}

std::vector<std::optional<Value>> variables_of(const jinja::Template& parsed, const Tokens& tokens,
                                               const ChatInput& input, const Context& context) {
  Variables variables(parsed, context);
  for (const auto& [name, token] : tokens)
    variables.set(name, [&, &one = token](InputReader&) { return token_value(context, one); });
  variables.set("documents", [](InputReader&) { return Value(); });
  for (const auto& [name, value] : input.kwargs) {
    HR_REQUIRE(std::ranges::find(kOwnNames, name) == std::end(kOwnNames), ErrorCode::kInvalidArgument,
               "the template variable '", printable(name), "' cannot be set: it belongs to the conversation");
    variables.set(name, [&one = value](InputReader& reader) { return reader.read(one); });
  }
  variables.set("messages", [&](InputReader& reader) { return reader.read_array(input.messages); });
  variables.set("tools", [&](InputReader& reader) { return reader.read(input.tools); });
  variables.set("add_generation_prompt", [&](InputReader&) { return Value(input.add_generation_prompt); });
  return variables.take();
}

// The text that the model is to go on with: the last message's content, or the last text among its parts.
const std::string& final_content(const ChatInput& input) {
  const auto member_of = [](const TemplateValue& value, std::string_view name) -> const TemplateValue* {
    const auto* object = std::get_if<std::shared_ptr<const TemplateValue::Object>>(&value.variant());
    if (object == nullptr) return nullptr;
    for (const auto& [key, member] : **object)
      if (key == name) return &member;
    return nullptr;
  };
  const auto text_of = [](const TemplateValue* value) {
    return value == nullptr ? nullptr : std::get_if<std::string>(&value->variant());
  };
  const TemplateValue* content = input.messages.empty() ? nullptr : member_of(input.messages.back(), "content");
  if (const std::string* text = text_of(content)) return *text;
  if (content != nullptr) {
    if (const auto* parts = std::get_if<std::shared_ptr<const TemplateValue::Array>>(&content->variant())) {
      for (auto part = (*parts)->rbegin(); part != (*parts)->rend(); ++part)
        if (const std::string* text = text_of(member_of(*part, "text"))) return *text;
    }
  }
  throw Error(ErrorCode::kInvalidArgument, "the last message has no text to go on with");
}

// Cuts `text` behind its last occurrence of `content`, as transformers does: with the content's white space at its end
// if the template keeps it.
jinja::TextPtr cut_behind(const Context& context, const jinja::Text& text, const std::string& content) {
  const jinja::TextPtr whole = context.text(is_valid_utf8(content) ? content : repaired(content));
  const std::string core = jinja::stripped(context, *whole, jinja::Side::kBoth)->bytes;
  const std::string from_core = jinja::stripped(context, *whole, jinja::Side::kLeft)->bytes;
  const size_t at = jinja::rfind_in(text.bytes, core);
  HR_REQUIRE(at != std::string::npos, ErrorCode::kInvalidArgument,
             "the chat template changes the last message, so the model cannot go on with it");
  const bool keeps_space = std::string_view(text.bytes).substr(at).starts_with(from_core);
  return context.part(text, 0, at + (keeps_space ? from_core.size() : core.size()));
}

}  // namespace

std::optional<ChatTemplate> ChatTemplate::of_model(const std::filesystem::path& directory, std::string_view name) {
  auto file = read_template_file(directory, name);
  if (!file) return std::nullopt;
  try {
    auto parts = std::make_unique<Parts>();
    HR_REQUIRE(is_valid_utf8(file->source), ErrorCode::kModelFile, "it is not UTF-8");
    parts->parsed = jinja::parse(file->source);
    parts->source = std::move(file->source);
    for (auto& [token, content] : file->tokens) parts->tokens.emplace_back(token, content);
    if (!file->additional_tokens.empty()) {
      TemplateValue::Array all(file->additional_tokens.begin(), file->additional_tokens.end());
      parts->tokens.emplace_back("additional_special_tokens", std::move(all));
    }
    return ChatTemplate(std::move(parts));
  } catch (const Error& error) {
    throw Error(error.code(), str(file->origin, ": the chat template, ", error.what()));
  }
}

ChatTemplate ChatTemplate::from_text(std::string_view source, std::string_view bos_token, std::string_view eos_token) {
  auto parts = std::make_unique<Parts>();
  HR_REQUIRE(is_valid_utf8(source), ErrorCode::kModelFile, "the chat template is not UTF-8");
  try {
    parts->parsed = jinja::parse(source);
  } catch (const Error& error) {
    throw Error(error.code(), str("the chat template, ", error.what()));
  }
  parts->source = source;
  parts->tokens = {{"bos_token", std::string(bos_token)}, {"eos_token", std::string(eos_token)}};
  return ChatTemplate(std::move(parts));
}

ChatTemplate::ChatTemplate(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

const std::string& ChatTemplate::source() const { return parts_->source; }

ChatPrompt ChatTemplate::render(const ChatInput& input, const TemplateBudget& budget) const {
  HR_REQUIRE(!input.continue_final_message || !input.add_generation_prompt, ErrorCode::kInvalidArgument,
             "a generation prompt and going on with the last message exclude each other");
  const auto more = static_cast<int64_t>(size_of(input, budget.depth)) * kSizePerInput;
  jinja::RenderMeter meter({.steps = budget.steps, .memory_bytes = budget.memory_bytes + more, .time = budget.time});
  const Context context{meter, budget.depth};
  try {
    jinja::Renderer renderer(parts_->parsed, context,
                             {.output_bytes = budget.output_bytes + more, .calls = budget.depth},
                             variables_of(parts_->parsed, parts_->tokens, input, context));
    jinja::TextPtr text = renderer.run();
    if (input.continue_final_message) text = cut_behind(context, *text, final_content(input));
    return {.text = text->bytes, .literal = text->literal};
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::kOutOfMemory, "out of memory in a chat template");
  }
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, const ChatPrompt& prompt) {
  return tokenizer.encode(prompt.text, {.special_tokens = SpecialTokens::kParse,
                                        .add_special_tokens = AddSpecialTokens::kNo,
                                        .literal = prompt.literal});
}

}  // namespace headrace
