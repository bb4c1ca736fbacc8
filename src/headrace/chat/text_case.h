// Python's upper(), lower() and their like for UTF-8 text. Stateless.
#pragma once
#include <string>
#include <string_view>

namespace headrace::jinja {

// Append the characters of `text`, mapped; one may become several.
void append_upper(std::string_view text, std::string& out);
void append_lower(std::string_view text, std::string& out);
void append_title(std::string_view text, std::string& out);  // each character as the first of a word
void append_swapped(std::string_view text, std::string& out);
void append_folded(std::string_view text, std::string& out);

bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_cased(char32_t c);
bool is_alphabetic(char32_t c);  // str.isalpha()
bool is_decimal(char32_t c);     // str.isdecimal()
bool is_numeric(char32_t c);     // a part of str.isalnum()

}  // namespace headrace::jinja
