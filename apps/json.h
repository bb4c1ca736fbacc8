// Just enough JSON to print what programs read.
#pragma once
#include <string>
#include <string_view>

namespace headrace::app {

std::string json_string(std::string_view text);  // a JSON string with its quotes; `text` is UTF-8

}  // namespace headrace::app
