// Chat templates as Hugging Face ships them: Jinja, rendered with transformers' options.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/chat/template_value.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

struct ChatInput {
  TemplateValue::Array messages = {};
  TemplateValue tools = {};  // an array, or null
  bool add_generation_prompt = true;
  // The text ends with the last message's content, which the model goes on with; expects no generation prompt.
  bool continue_final_message = false;
  TemplateValue::Object kwargs = {};  // further variables, such as enable_thinking
};

// A rendered conversation. What the messages, tools and kwargs brought is literal: it never becomes a special token.
struct ChatPrompt {
  using Span = TextSpan;  // bytes of `text`
  std::string text;
  std::vector<Span> literal;  // ascending, not empty, apart
};

// Limits of a rendering. Each byte of the input allows 16 more of output and of memory.
struct TemplateBudget {
  int64_t steps = 2'000'000;
  int64_t output_bytes = int64_t{8} << 20;
  int64_t memory_bytes = int64_t{12} << 20;  // at one time
  int32_t depth = 100;                       // of values within values, and of macros that call one another
  std::chrono::milliseconds time{200};       // of the thread's CPU
};

// Const methods are thread-safe.
class ChatTemplate {
 public:
  // The template of the model in `directory`: chat_template.jinja, else tokenizer_config.json's, else
  // chat_template.json's. `name`: of a template among several ("tool_use"); those without a name are "default".
  // Absent: the model has none. Error kModelFile: one that cannot be parsed, with its line.
  static std::optional<ChatTemplate> of_model(const std::filesystem::path& directory,
                                              std::string_view name = "default");
  // `bos_token`, `eos_token`: what these variables are.
  static ChatTemplate from_text(std::string_view source, std::string_view bos_token, std::string_view eos_token);

  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Error kInvalidArgument: what the template raises (raise_exception), what it cannot do with this input, and what
  // exceeds the budget.
  ChatPrompt render(const ChatInput& input, const TemplateBudget& budget = {}) const;
  const std::string& source() const;

 private:
  struct Parts;
  explicit ChatTemplate(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

// Returns the prompt's ids. Special tokens are read in what the template wrote alone; nothing is added in front.
std::vector<int32_t> encode(const Tokenizer& tokenizer, const ChatPrompt& prompt);

}  // namespace headrace
