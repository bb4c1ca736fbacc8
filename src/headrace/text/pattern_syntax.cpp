#include "headrace/text/pattern_syntax.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <sstream>

#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/unicode_16.h"

namespace headrace {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns the code points that Unicode 15 to 16 added to `category` ("L", "Lu"), for a character class of PCRE2.
std::string added_ranges(std::string_view category) {
  std::ostringstream out;
  out << std::hex;
  for (const CodePointRange& range : kAddedByUnicode16)
    if (range.category.starts_with(category))
      out << R"(\x{)" << static_cast<uint32_t>(range.first) << R"(}-\x{)" << static_cast<uint32_t>(range.last) << '}';
  return std::move(out).str();
}

// Returns true if `name` is a general category to which Unicode 15 to 16 only added. C and Cn lost the code points that
// other categories gained, and Mn lost U+1171E. Lc is no category: PCRE2 and Oniguruma read it as LC, which is three.
bool is_category(std::string_view name) {
  if (name == "C" || name == "Cn" || name == "Mn" || name == "Lc") return false;
  return (name.size() == 1 || (name.size() == 2 && name[1] >= 'a' && name[1] <= 'z')) && name[0] >= 'A' &&
         name[0] <= 'Z';
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
                str("pattern '", printable(regex_), "': '", printable(what), "' at byte ", at_, " is not supported"));
  }

  void copy(size_t count) { out_ += regex_.substr(at_, count), at_ += count; }
  void replace(size_t count, std::string_view by) { out_ += by, at_ += count; }

  void escape() {
    const char next = at_ + 1 < regex_.size() ? regex_[at_ + 1] : '\0';
    switch (next) {
      case 's': return replace(2, R"(\p{White_Space})");
      case 'S': return replace(2, R"(\P{White_Space})");
      case 'd': return category("Nd", R"(\p{Nd})", 2);
      case 'D': return category("Nd", R"(\P{Nd})", 2);
      case 'r':
      case 'n':
      case 't': return copy(2);
      case 'p':
      case 'P': return named_category();
      default: break;
    }
    const bool punctuation = std::ispunct(static_cast<unsigned char>(next)) != 0;
    if (!punctuation) refuse(regex_.substr(at_, 2));
    copy(2);
  }

  // General categories only: scripts and binary properties have other names, or mean something else, in PCRE2.
  void named_category() {
    const size_t close = std::min(regex_.find('}', at_), regex_.size());
    const std::string_view whole = regex_.substr(at_, close + 1 - at_);
    const bool braces = whole.size() > 4 && whole[2] == '{' && whole.back() == '}';
    const std::string_view name = braces ? whole.substr(3, whole.size() - 4) : std::string_view();
    if (!is_category(name)) refuse(whole);
    category(name, whole, whole.size());
  }

  // `syntax` is \p{name} or \P{name}, which stands for the next `count` bytes.
  void category(std::string_view name, std::string_view syntax, size_t count) {
    const std::string added = added_ranges(name);
    const bool negated = syntax[1] == 'P';
    if (added.empty()) return replace(count, syntax);
    if (in_class_ && negated) refuse(regex_.substr(at_, count));  // no class can hold its complement
    const std::string ranges = str(R"(\p)", syntax.substr(2), added);
    replace(count, in_class_ ? ranges : str(negated ? "[^" : "[", ranges, "]"));
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
