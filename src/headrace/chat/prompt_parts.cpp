#include "headrace/chat/prompt_parts.h"

#include <algorithm>
#include <vector>

namespace headrace {
namespace {

using Span = ChatPrompt::Span;

std::vector<Span> spans_between(const ChatPrompt& prompt, size_t begin, size_t end) {
  std::vector<Span> spans;
  for (const Span& span : prompt.literal) {
    if (span.begin < end && span.end > begin)
      spans.push_back({std::max(span.begin, begin) - begin, std::min(span.end, end) - begin});
  }
  return spans;
}

bool same(const Span& a, const Span& b) { return a.begin == b.begin && a.end == b.end; }

}  // namespace

ChatPrompt part_of(const ChatPrompt& prompt, size_t begin, size_t end) {
  return {.text = prompt.text.substr(begin, end - begin), .literal = spans_between(prompt, begin, end)};
}

bool begins_with(const ChatPrompt& prompt, const ChatPrompt& beginning) {
  return prompt.text.starts_with(beginning.text) &&
         std::ranges::equal(spans_between(prompt, 0, beginning.text.size()), beginning.literal, same);
}

}  // namespace headrace
