// Jinja's filters.
#pragma once
#include <string_view>

#include "headrace/chat/jinja_renderer.h"

namespace headrace::jinja {

using FilterBody = Value (*)(Renderer&, const Value& input, const CallArguments&);

// By name, null if there is none: those of texts and numbers, and those of sequences.
FilterBody text_filter(std::string_view name);
FilterBody sequence_filter(std::string_view name);

}  // namespace headrace::jinja
