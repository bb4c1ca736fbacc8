// Refuses prompts that do not fit into the context: long texts before they are tokenised.
#pragma once
#include <cstddef>
#include <cstdint>

#include "headrace/text/tokenizer.h"

namespace headrace {

// Const methods are thread-safe.
class PromptSize {
 public:
  // Reads all tokens of `tokenizer` once. `context`: tokens of a prompt and its output together.
  PromptSize(const Tokenizer& tokenizer, int32_t context);

  // Both throw RequestError 400 of code context_length_exceeded, with both numbers. One new token must fit, too.
  void check(size_t tokens) const;
  void check_text(size_t bytes) const;  // of a text that has too many tokens, however long these are

  int32_t context() const { return context_; }

 private:
  int32_t context_;
  size_t most_bytes_ = 1;  // of a token's text
};

}  // namespace headrace
