// Ids of a conversation that grows by turns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

// A model does not always write a text with the tokens that the text is encoded to. Where the next prompt goes on
// behind the last answer, this keeps the ids that the model wrote: the prefix cache has their text, and only what is
// new is encoded. Not thread-safe.
class GrowingChat {
 public:
  explicit GrowingChat(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}  // not owned

  // Returns the prompt's ids. They spell the same text as those of headrace::encode(), from which they differ at most
  // within earlier answers.
  std::vector<int32_t> encode(const ChatPrompt& prompt) const;
  // Says that the model went on behind `prompt`, whose ids were `ids`, with `answer`.
  void answered(ChatPrompt prompt, std::vector<int32_t> ids, std::vector<int32_t> answer);

 private:
  struct Known {
    size_t num_ids = 0, num_bytes = 0;  // of the answer that the prompt repeats
    bool is_whole = false;
  };
  bool goes_on(const ChatPrompt& prompt) const;
  Known known_answer(std::string_view text) const;
  std::vector<int32_t> encode_behind(const ChatPrompt& prompt, const Known& known) const;

  const Tokenizer& tokenizer_;
  ChatPrompt prompt_;  // of the last answer
  std::vector<int32_t> ids_, answer_;
};

}  // namespace headrace
