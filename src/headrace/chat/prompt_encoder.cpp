#include "headrace/chat/prompt_encoder.h"

#include <utility>

#include "headrace/chat/prompt_parts.h"

namespace headrace {

size_t PromptEncoder::Beginning::bytes() const {
  return prompt.text.size() + prompt.literal.size() * sizeof(ChatPrompt::Span) + ids.size() * sizeof(int32_t);
}

// Returns the ids of the longest beginning of `prompt` that is kept, and how many bytes it has; 0: none is.
PromptEncoder::Known PromptEncoder::longest(const ChatPrompt& prompt) {
  const std::lock_guard lock(mutex_);
  auto best = kept_.end();
  for (auto one = kept_.begin(); one != kept_.end(); ++one) {
    const bool is_longer = best == kept_.end() || one->prompt.text.size() > best->prompt.text.size();
    if (is_longer && begins_with(prompt, one->prompt)) best = one;
  }
  if (best == kept_.end()) return {};
  kept_.splice(kept_.begin(), kept_, best);
  return {.num_bytes = best->prompt.text.size(), .ids = best->ids};
}

void PromptEncoder::keep(Beginning beginning) {
  const std::lock_guard lock(mutex_);
  bytes_ += beginning.bytes();
  kept_.push_front(std::move(beginning));
  while (kept_.size() > kMostPrompts || bytes_ > most_bytes_) {
    bytes_ -= kept_.back().bytes();
    kept_.pop_back();
  }
}

std::vector<int32_t> PromptEncoder::encode(const ChatPrompt& prompt) {
  auto [num_bytes, ids] = longest(prompt);
  const ChatPrompt rest = part_of(prompt, num_bytes, prompt.text.size());
  const size_t cut = tokenizer_.last_cut(rest.text, rest.literal);
  const auto append = [&](size_t begin, size_t end) {
    const std::vector<int32_t> more = headrace::encode(tokenizer_, part_of(rest, begin, end));
    ids.insert(ids.end(), more.begin(), more.end());
  };
  if (cut > 0) {
    append(0, cut);
    keep({.prompt = part_of(prompt, 0, num_bytes + cut), .ids = ids});
  }
  append(cut, rest.text.size());
  return ids;
}

}  // namespace headrace
