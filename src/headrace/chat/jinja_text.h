// Operations on texts that methods and filters share. Results keep the origins of what they take over.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/chat/jinja_value.h"

namespace headrace::jinja {

enum class Side : uint8_t { kLeft = 1, kRight = 2, kBoth = 3 };

// `text` without white space at its ends, or without the characters of `characters` if it is given.
TextPtr stripped(const Context& context, const Text& text, Side side, const Text* characters = nullptr);
// The first `most` occurrences of `old` replaced; all of them if `most` is negative.
TextPtr replaced(const Context& context, const Text& text, const Text& old, const Text& with, int64_t most);
// Parts between separators, at most `most` cuts (negative: any number), from the left or the right.
enum class From : uint8_t { kLeft, kRight };
std::vector<Value> split(const Context& context, const Text& text, const Text& separator, int64_t most, From from);
std::vector<Value> split_at_space(const Context& context, const Text& text, int64_t most, From from);
enum class LineEnds : uint8_t { kKeep, kDrop };
std::vector<TextPart> lines_of(const Context& context, const Text& text, LineEnds ends = LineEnds::kDrop);
TextPtr joined(const Context& context, const Text& separator, const std::vector<Value>& items);
// The text in a field of `width` characters.
TextPtr padded(const Context& context, const Text& text, int64_t left, int64_t right, std::string_view fill = " ");

using CaseMap = void (*)(std::string_view, std::string&);
TextPtr mapped(const Context& context, const Text& text, CaseMap map);
// First character as the first of a word, the others in lower case.
TextPtr capitalized(const Context& context, const Text& text);
// str.title(): each letter behind a character without case as the first of a word.
TextPtr titled(const Context& context, const Text& text);
TextPtr reversed(const Context& context, const Text& text);
// Markup: the text with HTML's marks escaped, or as it stands.
TextPtr escaped_html(const Context& context, const Text& text);
TextPtr safe_html(const Context& context, const Text& text);

// True if there is a character and all of them pass.
bool all_characters(const Text& text, bool (*passes)(char32_t));
bool is_lower_text(const Text& text);  // str.islower()
bool is_upper_text(const Text& text);

}  // namespace headrace::jinja
