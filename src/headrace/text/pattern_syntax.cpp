#include "headrace/text/pattern_syntax.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <sstream>

#include "headrace/base/error.h"
#include "headrace/text/unicode_16.h"

namespace headrace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// For a character class of PCRE2.
std::string added_ranges(char category) {
  std::ostringstream out;
  out << std::hex;
  for (const auto [first, last] : added_to_category(category))
    out << R"(\x{)" << static_cast<uint32_t>(first) << R"(}-\x{)" << static_cast<uint32_t>(last) << '}';
  return std::move(out).str();
}

class Translator {
 public:
  explicit Translator(std::string_view regex) : regex_(regex) {}

  std::string run() {
    while (at_ < regex_.size()) {
      if (regex_[at_] == '\\') {
        escape();
      } else if (in_class_) {
        class_character();
      } else {
        character();
      }
    }
    return std::move(out_);
  }

 private:
  bool follows(std::string_view what) const { return regex_.substr(at_).starts_with(what); }

  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(ErrorCode::kUnsupported,
                str("pattern '", regex_, "': '", what, "' at byte ", at_, " is not supported"));
  }

  void copy(size_t count) { out_ += regex_.substr(at_, count), at_ += count; }
  void replace(size_t count, std::string_view by) { out_ += by, at_ += count; }

  void escape() {
    const char next = at_ + 1 < regex_.size() ? regex_[at_ + 1] : '\0';
    switch (next) {
      case 's': return replace(2, R"(\p{White_Space})");
      case 'S': return replace(2, R"(\P{White_Space})");
      case 'd': return replace(2, R"(\p{Nd})");
      case 'D': return replace(2, R"(\P{Nd})");
      case 'r':
      case 'n':
      case 't': return copy(2);
      case 'p':
      case 'P': return category();
      default: break;
    }
    const bool punctuation = std::ispunct(static_cast<unsigned char>(next)) != 0;
    if (!punctuation) refuse(regex_.substr(at_, 2));
    copy(2);
  }

  // General categories only: scripts and binary properties have other names, or mean something else, in PCRE2.
  void category() {
    const size_t close = std::min(regex_.find('}', at_), regex_.size());
    const std::string_view whole = regex_.substr(at_, close + 1 - at_);
    const bool short_name = whole.size() == 5 || whole.size() == 6;  // \p{L}, \p{Lu}
    if (!short_name || whole[2] != '{' || !std::all_of(whole.begin() + 3, whole.end() - 1, is_letter)) refuse(whole);
    const std::string added = whole.size() == 5 ? added_ranges(whole[3]) : std::string();
    const bool negated = whole[1] == 'P';
    if (in_class_ && negated && !added.empty()) refuse(whole);  // no class can hold its complement
    if (!in_class_ && !added.empty()) out_ += negated ? "[^" : "[";
    out_ += added.empty() ? whole : str(R"(\p)", whole.substr(2), added);
    if (!in_class_ && !added.empty()) out_ += ']';
    at_ += whole.size();
  }

  void class_character() {
    if (follows("[") || follows("&&")) refuse(regex_.substr(at_, follows("[") ? 1 : 2));
    if (follows("]")) in_class_ = false;
    copy(1);
  }

  void character() {
    switch (regex_[at_]) {
      case '^':
      case '$': refuse(regex_.substr(at_, 1));
      case '[': return open_class();
      case '(': return open_group();
      case '{': return counted_quantifier();
      default: copy(1);
    }
  }

  void open_class() {
    in_class_ = true;
    copy(follows("[^") ? 2 : 1);
    if (follows("]")) refuse("[]");  // empty in one language, a literal ']' in the other
  }

  void open_group() {
    if (follows("(*")) refuse("(*");
    if (!follows("(?")) return copy(1);
    for (const std::string_view kind : {"(?:", "(?i:", "(?=", "(?!"})
      if (follows(kind)) return copy(kind.size());
    refuse(regex_.substr(at_, 3));
  }

  void counted_quantifier() {
    size_t end = at_ + 1;
    while (end < regex_.size() && is_digit(regex_[end])) ++end;
    bool good = end > at_ + 1;  // {,3} is a quantifier in one language and literal in the other
    if (end < regex_.size() && regex_[end] == ',') ++end;
    while (end < regex_.size() && is_digit(regex_[end])) ++end;
    good = good && end < regex_.size() && regex_[end] == '}';
    // {1,3}+ is possessive in one language and a quantified quantifier in the other; {2}? is lazy in one only.
    good = good && (end + 1 == regex_.size() || (regex_[end + 1] != '+' && regex_[end + 1] != '?'));
    if (!good) refuse(regex_.substr(at_, std::min(end + 2, regex_.size()) - at_));
    copy(end + 1 - at_);
  }

  std::string_view regex_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string pcre2_syntax(std::string_view regex) { return Translator(regex).run(); }

}  // namespace headrace
