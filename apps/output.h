// Standard output and standard error, unbuffered.
#pragma once
#include <string_view>

namespace headrace::app {

// Writes all of it; false when the reader has gone, which is the reader's choice and no error.
bool write_out(std::string_view text);
// As much of it as somebody reads.
void write_err(std::string_view text);

}  // namespace headrace::app
