// UTF-8 as text layers need it: repairing bytes, and walking text that is already valid. Stateless.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace headrace {

// Appends `bytes` to `out` with every maximal ill-formed part replaced by U+FFFD (Unicode 3.9, "substitution of maximal
// subparts"), as Python's bytes.decode("utf-8", "replace") and Rust's from_utf8_lossy do. Returns how many bytes at the
// end were left out because they begin a character whose rest may still come: 0 to 3.
size_t append_repaired(std::string_view bytes, std::string& out);

// All of `bytes`, repaired; a character cut off at the end becomes one U+FFFD.
std::string repaired(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

// The code point that starts at text[at], and moves `at` past it. `text` is valid UTF-8 and at < text.size().
char32_t next_code_point(std::string_view text, size_t& at);

// The start of the code point that ends at text[at - 1]. `text` is valid UTF-8 and at > 0.
size_t previous_start(std::string_view text, size_t at);

// Appends the UTF-8 of a code point that is no surrogate.
void append_utf8(char32_t code_point, std::string& out);

// The Unicode property White_Space (25 code points; stable since Unicode 6.3).
bool is_white_space(char32_t code_point);

}  // namespace headrace
