// Parts of a rendered conversation.
#pragma once
#include <cstddef>

#include "headrace/chat/chat_template.h"

namespace headrace {

// Returns the bytes from `begin` to `end` of `prompt`, and which of them are literal.
ChatPrompt part_of(const ChatPrompt& prompt, size_t begin, size_t end);
// Returns true if `prompt` begins with `beginning`: the same text, the same bytes literal.
bool begins_with(const ChatPrompt& prompt, const ChatPrompt& beginning);

}  // namespace headrace
