// Quotes text of files in error messages.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// Returns `text` made printable: names and values in files are untrusted and of any length. Control characters, quotes
// and invalid UTF-8 bytes become \xNN; everything after `most` characters becomes one "…".
std::string printable(std::string_view text, int most = 80);

}  // namespace headrace
