// Words of other programs' command lines.
#pragma once
#include <optional>
#include <string_view>

namespace headrace::app {

// Of an option or command that users of llama.cpp, vLLM and transformers type: what to do here. Options that mean the
// same have a second name instead.
std::optional<std::string_view> known_elsewhere(std::string_view word);

}  // namespace headrace::app
