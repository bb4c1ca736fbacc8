#include "headrace/chat/text_case.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

// Characters whose upper case is several ones (Unicode's SpecialCasing.txt without its conditions and Greek iotas).
struct Expansion {
  char32_t from;
  std::u32string_view upper, title;
};
constexpr Expansion kExpansions[] = {{0xDF, U"SS", U"Ss"},
                                     {0x149, U"\u02BCN", U"\u02BCN"},
                                     {0x1F0, U"J\u030C", U"J\u030C"},
                                     {0x390, U"\u0399\u0308\u0301", U"\u0399\u0308\u0301"},
                                     {0x3B0, U"\u03A5\u0308\u0301", U"\u03A5\u0308\u0301"},
                                     {0x587, U"\u0535\u0552", U"\u0535\u0582"},
                                     {0x1E96, U"H\u0331", U"H\u0331"},
                                     {0x1E97, U"T\u0308", U"T\u0308"},
                                     {0x1E98, U"W\u030A", U"W\u030A"},
                                     {0x1E99, U"Y\u030A", U"Y\u030A"},
                                     {0x1E9A, U"A\u02BE", U"A\u02BE"},
                                     {0xFB00, U"FF", U"Ff"},
                                     {0xFB01, U"FI", U"Fi"},
                                     {0xFB02, U"FL", U"Fl"},
                                     {0xFB03, U"FFI", U"Ffi"},
                                     {0xFB04, U"FFL", U"Ffl"},
                                     {0xFB05, U"ST", U"St"},
                                     {0xFB06, U"ST", U"St"}};

const Expansion* expansion_of(char32_t c) {
  const auto* found = std::ranges::find(kExpansions, c, &Expansion::from);
  return found == std::end(kExpansions) ? nullptr : found;
}

void append_all(std::u32string_view points, std::string& out) {
  for (const char32_t c : points) append_utf8(c, out);
}

template <class Map>
void append_mapped(std::string_view text, std::string& out, Map&& map) {
  for (size_t at = 0; at < text.size();) map(next_code_point(text, at), out);
}

utf8proc_int32_t point(char32_t c) { return static_cast<utf8proc_int32_t>(c); }

void append_one_upper(char32_t c, std::string& out) {
  if (const Expansion* expansion = expansion_of(c)) return append_all(expansion->upper, out);
  append_utf8(static_cast<char32_t>(utf8proc_toupper(point(c))), out);
}

void append_one_lower(char32_t c, std::string& out) {
  if (c == 0x130) return append_all(U"i\u0307", out);
  append_utf8(static_cast<char32_t>(utf8proc_tolower(point(c))), out);
}

void append_one_title(char32_t c, std::string& out) {
  if (const Expansion* expansion = expansion_of(c)) return append_all(expansion->title, out);
  append_utf8(static_cast<char32_t>(utf8proc_totitle(point(c))), out);
}

}  // namespace

void append_upper(std::string_view text, std::string& out) { append_mapped(text, out, append_one_upper); }
void append_lower(std::string_view text, std::string& out) { append_mapped(text, out, append_one_lower); }
void append_title(std::string_view text, std::string& out) { append_mapped(text, out, append_one_title); }

void append_swapped(std::string_view text, std::string& out) {
  append_mapped(text, out, [](char32_t c, std::string& to) {
    is_upper(c) ? append_one_lower(c, to) : is_lower(c) ? append_one_upper(c, to) : append_utf8(c, to);
  });
}

void append_folded(std::string_view text, std::string& out) {
  append_mapped(text, out, [](char32_t c, std::string& to) {
    utf8proc_int32_t folded[8];
    const auto count = utf8proc_decompose_char(point(c), folded, 8, UTF8PROC_CASEFOLD, nullptr);
    for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(static_cast<char32_t>(folded[i]), to);
  });
}

bool is_upper(char32_t c) {
  return utf8proc_category(point(c)) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216F) ||
         (c >= 0x24B6 && c <= 0x24CF);
}

bool is_lower(char32_t c) {
  return utf8proc_category(point(c)) == UTF8PROC_CATEGORY_LL || c == 0xAA || c == 0xBA || (c >= 0x2B0 && c <= 0x2B8) ||
         (c >= 0x2170 && c <= 0x217F) || (c >= 0x24D0 && c <= 0x24E9);
}

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || utf8proc_category(point(c)) == UTF8PROC_CATEGORY_LT; }

bool is_alphabetic(char32_t c) {
  const auto category = utf8proc_category(point(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) { return utf8proc_category(point(c)) == UTF8PROC_CATEGORY_ND; }

bool is_numeric(char32_t c) {
  const auto category = utf8proc_category(point(c));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

}  // namespace headrace::jinja
