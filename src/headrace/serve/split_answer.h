// A choice's text, told apart into thinking and answer while it grows.
#pragma once
#include <string>
#include <string_view>

#include "headrace/chat/reasoning_stream.h"

namespace headrace {

class SplitAnswer {
 public:
  // `prompt`: the rendered conversation; without one the text is an answer as a whole.
  explicit SplitAnswer(std::string_view prompt) : stream_(prompt) {}

  enum class Rest : uint8_t { kComes, kNone };
  // Returns what is new in `text`, all of the choice's text so far.
  ReasoningStream::Parts next(std::string_view text, Rest rest) {
    ReasoningStream::Parts parts = stream_.push(text.substr(read_));
    read_ = text.size();
    if (rest == Rest::kComes) return parts;
    const ReasoningStream::Parts last = stream_.finish();
    return {.reasoning = parts.reasoning + last.reasoning, .content = parts.content + last.content};
  }

 private:
  ReasoningStream stream_;
  size_t read_ = 0;  // bytes of the text
};

}  // namespace headrace
