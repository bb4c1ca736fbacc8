// Texts that the program reads.
#pragma once
#include <string>

namespace headrace::app {

// All of `file`, or of standard input where it is "-". Error kInvalidArgument when it cannot be read.
std::string read_text(const std::string& file);

}  // namespace headrace::app
