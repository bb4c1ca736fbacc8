#include "load_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace headrace::app {
namespace {

constexpr std::array<std::string_view, 64> kWords = {
    "the",   "of",    "and", "to",   "in",    "is",    "you",  "that", "it",    "he",    "was",  "for",   "on",
    "are",   "with",  "as",  "his",  "they",  "be",    "at",   "one",  "have",  "this",  "from", "or",    "had",
    "by",    "not",   "but", "what", "all",   "were",  "we",   "when", "your",  "can",   "said", "there", "each",
    "which", "she",   "do",  "how",  "their", "if",    "will", "up",   "other", "about", "out",  "many",  "then",
    "them",  "these", "so",  "some", "her",   "would", "make", "like", "him",   "into",  "time", "has"};

int64_t one_or_more(double words) { return std::max<int64_t>(1, std::llround(words)); }

}  // namespace

std::string RandomWords::text(int64_t count) {
  std::uniform_int_distribution<size_t> place(0, kWords.size() - 1);
  std::string text;
  for (; count > 0; --count) {
    text += ' ';
    text += kWords[place(random_)];
  }
  return text;
}

TokenRatio::TokenRatio(Count few, Count many) {
  if (many.words <= few.words || many.tokens <= few.tokens) return;  // the server does not count
  per_word_ = static_cast<double>(many.tokens - few.tokens) / static_cast<double>(many.words - few.words);
  common_ = std::max(0.0, static_cast<double>(few.tokens) - per_word_ * static_cast<double>(few.words));
}

int64_t TokenRatio::words_for(int64_t tokens) const { return one_or_more(static_cast<double>(tokens) / per_word_); }

int64_t TokenRatio::words_for_prompt(int64_t tokens) const {
  return one_or_more((static_cast<double>(tokens) - common_) / per_word_);
}

}  // namespace headrace::app
