// A conversation with a loaded model.
#pragma once
#include <optional>
#include <string>

#include "answer_view.h"
#include "chat_settings.h"
#include "conversation.h"
#include "headrace/chat/chat_template.h"
#include "headrace/chat/growing_chat.h"
#include "headrace/llm/llm.h"
#include "headrace/request/prefix_miss.h"

namespace headrace::app {

// The answer of a turn, and its cost.
struct Turn {
  Completion completion;
  uint64_t seed = 0;
  double first_token_s = 0, total_s = 0;  // from the message on
  std::optional<PrefixMiss> miss;
};

// Not thread-safe.
class ChatSession {
 public:
  // `llm` is not owned. `flags`: how answers are shown.
  ChatSession(LLM& llm, ChatTemplate chat_template, const GenerateFlags& flags)
      : llm_(llm), template_(std::move(chat_template)), flags_(flags), known_(llm.tokenizer()) {}

  // Answers a message of the user, and shows the answer while it is made. An interrupt ends the answer, which stays in
  // the conversation as far as it came. Error kInvalidArgument, which leaves the conversation as it was, if the
  // template refuses it or the context has no room for it.
  const Turn& ask(const std::string& message);
  void set_system(const std::string& text);  // empty: none
  void clear();                              // but for the system's message

  Conversation conversation;
  ChatSettings settings;

  const std::optional<Turn>& last_turn() const { return last_turn_; }
  bool reader_gone() const { return reader_gone_; }
  LLM& llm() { return llm_; }
  // Lines about the model, the context, the last turn and its cached text.
  std::string stats_text() const;

 private:
  ChatPrompt render(const std::string& message) const;
  SamplingParams params() const;
  Turn generate(AnswerView& view, Screen& screen, const std::vector<int32_t>& ids);

  LLM& llm_;
  ChatTemplate template_;
  GenerateFlags flags_;
  GrowingChat known_;
  std::optional<Turn> last_turn_;
  bool reader_gone_ = false;
};

}  // namespace headrace::app
