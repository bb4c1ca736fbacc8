// Texts that the program reads.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace headrace::app {

// All of `file`, or of standard input where it is "-". Error kInvalidArgument when it cannot be read.
std::string read_text(const std::string& file);

// One sentence about the first byte of `text` that is not UTF-8; or nothing. `what` it is: "the prompt".
std::optional<std::string> not_utf8(std::string_view what, std::string_view text);

}  // namespace headrace::app
