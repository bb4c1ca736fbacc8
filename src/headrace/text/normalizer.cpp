#include "headrace/text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "headrace/base/error.h"
#include "headrace/text/utf8.h"

namespace headrace {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

auto combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

std::vector<utf8proc_int32_t> decomposed(std::string_view text) {
  constexpr size_t kLongest = 32;  // no canonical decomposition is longer than 4
  std::vector<utf8proc_int32_t> out;
  out.reserve(text.size());
  std::array<utf8proc_int32_t, kLongest> buffer;
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<utf8proc_int32_t>(next_code_point(text, at));
    const auto count = utf8proc_decompose_char(c, buffer.data(), kLongest, UTF8PROC_DECOMPOSE, nullptr);
    HR_ASSERT(count >= 0 && count <= static_cast<utf8proc_ssize_t>(kLongest));
    out.insert(out.end(), buffer.begin(), buffer.begin() + count);
  }
  return out;
}

// Canonical ordering. Not utf8proc's, whose time is quadratic in a run of marks.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if(begin, text.end(), [](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(begin, text.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

std::string nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  std::vector<utf8proc_int32_t> points = decomposed(text);
  order_marks(points);
  const auto count = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  HR_ASSERT(count >= 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
  return out;
}

}  // namespace headrace
