#include "headrace/chat/reasoning_stream.h"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

constexpr std::string_view kOpening = "<think>", kClosing = "</think>", kSpace = " \t\r\n";

std::string_view without_space_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);  // npos + 1 is 0
}

// Returns `text` without an end that may yet become the closing tag.
std::string_view without_begun_closing(std::string_view text) {
  for (size_t size = std::min(text.size(), kClosing.size() - 1); size > 0; --size) {
    if (text.ends_with(kClosing.substr(0, size))) return text.substr(0, text.size() - size);
  }
  return text;
}

}  // namespace

ReasoningStream::ReasoningStream(std::string_view prompt)
    : is_thinking_(without_space_behind(prompt).ends_with(kOpening)), trims_(is_thinking_) {}

// A prompt may hold the opening tag, and the model write it again.
bool ReasoningStream::read_opening() {
  const size_t begin = std::min(pending_.find_first_not_of(kSpace), pending_.size());
  const std::string_view text = std::string_view(pending_).substr(begin);
  if (text.size() < kOpening.size() && kOpening.starts_with(text)) return false;
  may_begin_ = false;
  if (text.starts_with(kOpening)) {
    is_thinking_ = trims_ = true;
    pending_.erase(0, begin + kOpening.size());
  }
  return true;
}

bool ReasoningStream::skip_space() {
  pending_.erase(0, pending_.find_first_not_of(kSpace));
  trims_ = pending_.empty();
  return !trims_;
}

void ReasoningStream::read_thinking(Parts& parts) {
  const size_t end = pending_.find(kClosing);
  const std::string_view text = std::string_view(pending_).substr(0, end);
  const std::string_view thought = without_space_behind(end == std::string::npos ? without_begun_closing(text) : text);
  parts.reasoning += thought;
  pending_.erase(0, end == std::string::npos ? thought.size() : end + kClosing.size());
  if (end != std::string::npos) is_thinking_ = false, trims_ = true;
}

ReasoningStream::Parts ReasoningStream::push(std::string_view text) {
  Parts parts;
  pending_ += text;
  if (may_begin_ && !read_opening()) return parts;
  if (trims_ && !skip_space()) return parts;
  if (is_thinking_) {
    read_thinking(parts);
    if (is_thinking_ || !skip_space()) return parts;
  }
  parts.content += std::exchange(pending_, {});
  return parts;
}

ReasoningStream::Parts ReasoningStream::finish() {
  may_begin_ = false;
  Parts parts = push({});
  (is_thinking_ ? parts.reasoning : parts.content) += std::exchange(pending_, {});
  return parts;
}

}  // namespace headrace
