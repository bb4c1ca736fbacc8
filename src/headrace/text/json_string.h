// Texts and numbers as JSON writes them. Stateless.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// Appends a JSON string with its quotes. `text` is UTF-8.
void append_json_string(std::string_view text, std::string& out);
std::string json_string(std::string_view text);

// Appends the shortest number that reads back as `value`. JSON has no NaN and no infinity: null stands for NaN, and
// +-9999 for infinities, as in vLLM.
void append_json_number(float value, std::string& out);

}  // namespace headrace
