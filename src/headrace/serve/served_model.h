// The model that a server serves.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/chat/prompt_encoder.h"
#include "headrace/llm/async_llm.h"
#include "headrace/serve/prompt_size.h"

namespace headrace {

// Const methods are thread-safe.
class ServedModel {
 public:
  // `llm` is not owned. `names`: that requests may have; the first one stands in responses. `defaults`: of requests;
  // max_tokens is that of chats.
  ServedModel(AsyncLLM& llm, std::vector<std::string> names, std::optional<ChatTemplate> chat, SamplingParams defaults);

  AsyncLLM& llm() const { return llm_; }
  const Tokenizer& tokenizer() const { return llm_.tokenizer(); }
  const std::vector<std::string>& names() const { return names_; }
  const SamplingParams& defaults() const { return defaults_; }
  const PromptSize& size() const { return size_; }
  const ChatTemplate* chat() const { return chat_ ? &*chat_ : nullptr; }  // null: the model has none
  std::vector<int32_t> encode(const ChatPrompt& prompt) const { return encoder_.encode(prompt); }
  int64_t created() const { return created_; }  // seconds since 1970

  // Returns the name for responses. Throws RequestError 404 for another model's; an empty one is the model that runs.
  std::string name_for(const std::string& asked) const;

 private:
  AsyncLLM& llm_;  // not owned
  std::vector<std::string> names_;
  std::optional<ChatTemplate> chat_;
  SamplingParams defaults_;
  PromptSize size_;
  mutable PromptEncoder encoder_;  // thread-safe
  int64_t created_;
};

}  // namespace headrace
