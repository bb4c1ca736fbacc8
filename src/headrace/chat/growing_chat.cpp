#include "headrace/chat/growing_chat.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "headrace/chat/prompt_parts.h"

namespace headrace {
namespace {

using Span = ChatPrompt::Span;

bool is_literal_at(const ChatPrompt& prompt, size_t at) {
  return std::ranges::any_of(prompt.literal, [at](const Span& s) { return s.begin <= at && at < s.end; });
}

}  // namespace

bool GrowingChat::goes_on(const ChatPrompt& prompt) const { return !ids_.empty() && begins_with(prompt, prompt_); }

GrowingChat::Known GrowingChat::known_answer(std::string_view text) const {
  Known known;
  for (const int32_t id : answer_) {
    const std::string_view bytes = tokenizer_.bytes_of(id);
    if (!text.substr(known.num_bytes).starts_with(bytes)) return known;
    ++known.num_ids;
    known.num_bytes += bytes.size();
  }
  known.is_whole = true;
  return known;
}

std::vector<int32_t> GrowingChat::encode_behind(const ChatPrompt& prompt, const Known& known) const {
  std::vector<int32_t> ids = ids_;
  ids.insert(ids.end(), answer_.begin(), answer_.begin() + static_cast<ptrdiff_t>(known.num_ids));
  const size_t begin = prompt_.text.size() + known.num_bytes;
  const std::vector<int32_t> rest = headrace::encode(tokenizer_, part_of(prompt, begin, prompt.text.size()));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

// Within a text that both the answer and something else wrote, the cut would change what the rest is encoded to.
std::vector<int32_t> GrowingChat::encode(const ChatPrompt& prompt) const {
  if (goes_on(prompt)) {
    const Known known = known_answer(std::string_view(prompt.text).substr(prompt_.text.size()));
    const bool cuts_cleanly = known.is_whole || !is_literal_at(prompt, prompt_.text.size() + known.num_bytes);
    if (known.num_ids > 0 && cuts_cleanly) return encode_behind(prompt, known);
  }
  return headrace::encode(tokenizer_, prompt);
}

void GrowingChat::answered(ChatPrompt prompt, std::vector<int32_t> ids, std::vector<int32_t> answer) {
  prompt_ = std::move(prompt);
  ids_ = std::move(ids);
  answer_ = std::move(answer);
}

}  // namespace headrace
