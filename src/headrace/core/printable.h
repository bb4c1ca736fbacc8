// Text of files in errors.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// `text` as an error quotes it: names and values from files are data, of any length. Control characters, quotes and
// bytes that are no UTF-8 become \xNN; what is behind `most` characters becomes one "…".
std::string printable(std::string_view text, int most = 80);

}  // namespace headrace
