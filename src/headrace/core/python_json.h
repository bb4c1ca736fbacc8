// Numbers of Python's json module that JSON or 64 bits cannot represent. Stateless.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// Returns `text` with each NaN, Infinity, -Infinity, integer of more than 18 digits and number beyond double replaced
// by a string for marked_number(). A strict parser would refuse such numbers even under unused keys. nullopt if there
// is none. Does not repair invalid JSON.
std::optional<std::string> with_marked_numbers(std::string_view text);

// Returns the number's text if `string` is such a replacement.
std::optional<std::string_view> marked_number(std::string_view string);

}  // namespace headrace
