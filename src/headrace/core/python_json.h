// JSON as Python's json module writes it: numbers that JSON or 64 bits do not have. Stateless.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// `text` with each NaN, Infinity, -Infinity, integer of more than 18 digits and number beyond a double as a string that
// marked_number() knows: for a strict parser, which would refuse them although nobody may read their keys. nullopt if
// there is none. What is no JSON stays none.
std::optional<std::string> with_marked_numbers(std::string_view text);

// The number's characters, if `string` was made of one.
std::optional<std::string_view> marked_number(std::string_view string);

}  // namespace headrace
