// Token ids to text as they come. One per sequence; not thread-safe.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/text/tokenizer.h"

namespace headrace {

// The texts of push() and of flush() at the end concatenate to Tokenizer::decode() of all ids. None ends inside a
// character: bytes of an unfinished one wait for the next token.
class Detokenizer {
 public:
  // `tokenizer` is not owned and outlives this object.
  explicit Detokenizer(const Tokenizer& tokenizer, SpecialText special = SpecialText::kSkip)
      : tokenizer_(&tokenizer), special_(special) {}

  // The text that is certain once `id` is known; often empty. Valid UTF-8.
  std::string push(int32_t id);

  // The end of the text: U+FFFD if a character was left unfinished, else empty. Ready for a new sequence afterwards.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;  // not owned
  SpecialText special_;
  std::string end_run();

  std::string pending_;  // the first bytes of an unfinished character: at most 3
  std::string run_;      // fallback bytes, whose text is certain only when a token of another kind follows
};

}  // namespace headrace
