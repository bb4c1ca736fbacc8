// Ids of many conversations, each of which grows by turns.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "headrace/chat/chat_template.h"
#include "headrace/text/tokenizer.h"

namespace headrace {

// Keeps the prompts that it encoded last. A prompt that begins as one of them is encoded from there on alone; its ids
// are those of headrace::encode(), whatever came before. Thread-safe.
class PromptEncoder {
 public:
  // `tokenizer` is not owned. `most_bytes`: of prompts and their ids that are kept.
  explicit PromptEncoder(const Tokenizer& tokenizer, size_t most_bytes = size_t{32} << 20)
      : tokenizer_(tokenizer), most_bytes_(most_bytes) {}

  std::vector<int32_t> encode(const ChatPrompt& prompt);

 private:
  // A prompt up to a place where it can be cut (Tokenizer::last_cut).
  struct Beginning {
    ChatPrompt prompt;
    std::vector<int32_t> ids;

    size_t bytes() const;
  };
  struct Known {
    size_t num_bytes = 0;
    std::vector<int32_t> ids;
  };
  static constexpr size_t kMostPrompts = 128;

  Known longest(const ChatPrompt& prompt);
  void keep(Beginning beginning);

  const Tokenizer& tokenizer_;
  size_t most_bytes_, bytes_ = 0;
  std::mutex mutex_;
  std::list<Beginning> kept_;  // the one that was used last first
};

}  // namespace headrace
