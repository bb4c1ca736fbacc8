// Texts of benchmarks for servers whose tokenizer is not known.
#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace headrace::app {

// Random common words, which most tokenizers have as one token each. The same seed gives the same words.
class RandomWords {
 public:
  explicit RandomWords(uint64_t seed) : random_(seed) {}
  std::string text(int64_t count);  // each word behind a space

 private:
  std::mt19937_64 random_;
};

// Tokens of a text of so many words, as a server counted them.
class TokenRatio {
 public:
  TokenRatio() = default;
  // Words and tokens of a text. The ratio is between two texts of different lengths: their common part, such as a chat
  // template's, counts as no word's.
  struct Count {
    int64_t words = 0, tokens = 0;
  };
  TokenRatio(Count few, Count many);

  double per_word() const { return per_word_; }
  int64_t words_for(int64_t tokens) const;         // of a part of a text; 1 or more
  int64_t words_for_prompt(int64_t tokens) const;  // of a text with its common part; 1 or more

 private:
  double per_word_ = 1, common_ = 0;
};

}  // namespace headrace::app
