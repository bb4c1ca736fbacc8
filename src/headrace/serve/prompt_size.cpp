#include "headrace/serve/prompt_size.h"

#include <algorithm>

#include "headrace/serve/request_error.h"

namespace headrace {
namespace {

// Normalisation may make a text shorter before it is cut into tokens: composed letters, trimmed white space.
constexpr size_t kShrinks = 4;

[[noreturn]] void refuse(std::string_view at_least, size_t tokens, int32_t context) {
  throw RequestError(
      400,
      str("the prompt has ", at_least, tokens, " tokens, the context holds ", context, " with at least one new token"),
      "prompt", "context_length_exceeded");
}

}  // namespace

PromptSize::PromptSize(const Tokenizer& tokenizer, int32_t context) : context_(context) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    most_bytes_ = std::max(most_bytes_, tokenizer.bytes_of(id).size());
  }
}

void PromptSize::check(size_t tokens) const {
  if (tokens >= static_cast<size_t>(context_)) refuse("", tokens, context_);
}

void PromptSize::check_text(size_t bytes) const {
  const size_t tokens = bytes / (most_bytes_ * kShrinks);
  if (tokens >= static_cast<size_t>(context_)) refuse("at least ", tokens, context_);
}

}  // namespace headrace
