#include "headrace/chat/jinja_lexer.h"

#include <utf8proc.h>

#include <algorithm>

#include "headrace/chat/template_text.h"
#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

using Kind = Token::Kind;

// Newlines become "\n"; the last one goes.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!pair) out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

size_t spaces_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if (!is_python_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const size_t start = previous_start(text, text.size());
    size_t at = start;
    if (!is_python_space(next_code_point(text, at))) break;
    text = text.substr(0, start);
  }
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

int digit_of(char c) {
  if (is_digit(c)) return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : 99;
}

// The end of digits of `base` with single underscores between them; `at` if there are none.
size_t digits_end(std::string_view text, size_t at, int base) {
  size_t end = at;
  while (at < text.size()) {
    const size_t digit = at + (text[at] == '_' && end == at && at > 0 ? 1 : 0);
    if (digit >= text.size() || digit_of(text[digit]) >= base) break;
    at = end = digit + 1;
  }
  return end;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(source) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) lex_data();
    add(Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool sees(std::string_view word) const { return text_.substr(at_).starts_with(word); }
  void add(Kind kind, std::string_view text) { tokens_.push_back({kind, line_, std::string(text)}); }

  void move_to(size_t end) {
    line_ += static_cast<int32_t>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                             text_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    starts_line_ = end > at_ && text_[end - 1] == '\n';
    at_ = end;
  }

  // Returns the end of a tag's closing bracket at `at`, with the white space that it takes; npos if there is none.
  size_t closing_end(size_t at, std::string_view bracket) const {
    const std::string_view rest = text_.substr(at);
    const bool is_variable = bracket == "}}";
    if (rest.starts_with(bracket)) {
      const size_t end = at + 2;
      return !is_variable && end < text_.size() && text_[end] == '\n' ? end + 1 : end;
    }
    if (rest.empty() || !rest.substr(1).starts_with(bracket)) return npos;
    if (rest[0] == '-') return spaces_end(text_, at + 3);
    return rest[0] == '+' && !is_variable ? at + 3 : npos;
  }

  static bool is_opening(std::string_view two) { return two == "{{" || two == "{%" || two == "{#"; }

  // Text in front of a tag, without the white space that the tag takes.
  std::string_view stripped(std::string_view data, char sign, bool is_variable) const {
    if (sign == '-') return without_trailing_space(data);
    if (sign == '+' || is_variable) return data;
    const size_t newline = data.rfind('\n');
    const size_t begin = newline == npos ? 0 : newline + 1;
    if (begin == 0 && !starts_line_) return data;
    return spaces_end(data, begin) == data.size() ? data.substr(0, begin) : data;
  }

  char sign_at(size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
  }

  void lex_data() {
    size_t tag = at_;
    while ((tag = text_.find('{', tag)) != npos && !is_opening(text_.substr(tag, 2))) ++tag;
    if (tag == npos) {
      add(Kind::kData, text_.substr(at_));
      return move_to(text_.size());
    }
    const char sign = sign_at(tag + 2), type = text_[tag + 1];
    const std::string_view data = stripped(text_.substr(at_, tag - at_), sign, type == '{');
    if (!data.empty()) add(Kind::kData, data);
    move_to(tag);
    const size_t inside = tag + (sign == '\0' ? 2 : 3);
    if (type == '#') return lex_comment(inside);
    if (type == '%') {
      if (const size_t raw = word_tag_end(inside, "raw", false); raw != npos) return lex_raw(raw);
    }
    add(type == '{' ? Kind::kVariableBegin : Kind::kBlockBegin, "");
    move_to(inside);
    lex_tag(type == '{' ? "}}" : "%}", type == '{' ? Kind::kVariableEnd : Kind::kBlockEnd);
  }

  void lex_comment(size_t inside) {
    size_t close = text_.find("#}", inside);
    if (close == npos) fail_at(line_, "a comment has no end");
    const bool signed_close = close > inside && sign_at(close - 1) != '\0';
    move_to(closing_end(signed_close ? close - 1 : close, "#}"));
  }

  // Returns the end of a tag that holds `word` alone, from inside its opening bracket; npos if it is none.
  size_t word_tag_end(size_t inside, std::string_view word, bool takes_newline) const {
    const size_t begin = spaces_end(text_, inside);
    if (!text_.substr(begin).starts_with(word)) return npos;
    const size_t end = spaces_end(text_, begin + word.size());
    if (takes_newline) return closing_end(end, "%}");
    if (text_.substr(end).starts_with("%}")) return end + 2;
    return text_.substr(end).starts_with("-%}") ? spaces_end(text_, end + 3) : npos;
  }

  void lex_raw(size_t begin) {
    const int32_t line = line_;
    move_to(begin);
    for (size_t tag = begin; (tag = text_.find("{%", tag)) != npos; ++tag) {
      const char sign = sign_at(tag + 2);
      const size_t end = word_tag_end(tag + (sign == '\0' ? 2 : 3), "endraw", true);
      if (end == npos) continue;
      const std::string_view data = stripped(text_.substr(begin, tag - begin), sign, false);
      if (!data.empty()) add(Kind::kData, data);
      return move_to(end);
    }
    fail_at(line, "a raw block has no end");
  }

  void lex_tag(std::string_view bracket, Kind end_kind) {
    const int32_t line = line_;
    brackets_.clear();
    while (at_ < text_.size()) {
      const size_t end = brackets_.empty() ? closing_end(at_, bracket) : npos;
      if (end != npos) {
        add(end_kind, "");
        return move_to(end);
      }
      lex_token();
    }
    fail_at(line, "a tag has no end: expected ", bracket);
  }

  void lex_token() {
    const size_t space = spaces_end(text_, at_);
    if (space > at_) return move_to(space);
    if (is_digit(text_[at_])) return lex_number();
    if (text_[at_] == '"' || text_[at_] == '\'') return lex_string();
    if (const size_t end = name_end(); end > at_) {
      add(Kind::kName, text_.substr(at_, end - at_));
      return move_to(end);
    }
    lex_operator();
  }

  size_t name_end() const {
    size_t at = at_;
    while (at < text_.size()) {
      size_t next = at;
      const char32_t c = next_code_point(text_, next);
      const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
      const bool letter = c == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO);
      const bool inner = at > at_ && category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_NL;
      if (!letter && !inner) break;
      at = next;
    }
    return at;
  }

  // The end of a float at at_: a fraction, an exponent or both behind digits; npos if it is none.
  size_t float_end() const {
    if (at_ > 0 && text_[at_ - 1] == '.') return npos;
    const size_t whole = digits_end(text_, at_, 10);
    size_t end = whole;
    if (end < text_.size() && text_[end] == '.' && end + 1 < text_.size() && is_digit(text_[end + 1]))
      end = digits_end(text_, end + 1, 10);
    if (end < text_.size() && (text_[end] | 0x20) == 'e') {
      const size_t digits = end + 1 + (sign_at(end + 1) != '\0' ? 1 : 0);
      if (digits < text_.size() && is_digit(text_[digits])) end = digits_end(text_, digits, 10);
    }
    return end == whole ? npos : end;
  }

  void lex_number() {
    size_t end = float_end();
    const Kind kind = end == npos ? Kind::kInteger : Kind::kFloat;
    if (end == npos) end = integer_end();
    std::string digits(text_.substr(at_, end - at_));
    std::erase(digits, '_');
    add(kind, digits);
    move_to(end);
  }

  size_t integer_end() const {
    const char mark = at_ + 1 < text_.size() ? static_cast<char>(text_[at_ + 1] | 0x20) : '\0';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
    if (text_[at_] == '0' && (mark == 'x' || mark == 'o' || mark == 'b')) {
      const size_t end = digits_end(text_, at_ + 2, base);
      if (end > at_ + 2) return end;
    }
    return digits_end(text_, at_, text_[at_] == '0' ? 1 : 10);
  }

  void lex_string() {
    const char quote = text_[at_];
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail_at(line_, "a string has no end");
    add(Kind::kString, unescaped(text_.substr(at_ + 1, end - at_ - 1)));
    move_to(end + 1);
  }

  void append_hex(std::string_view text, size_t& at, size_t digits, std::string& out) const {
    char32_t c = 0;
    for (size_t i = 0; i < digits; ++i, ++at) {
      if (at >= text.size() || digit_of(text[at]) >= 16) fail_at(line_, "a string has an escape that is cut off");
      c = c * 16 + static_cast<char32_t>(digit_of(text[at]));
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) fail_at(line_, "a string has an escape that is no character");
    append_utf8(c, out);
  }

  // As Python's "unicode-escape".
  std::string unescaped(std::string_view text) const {
    constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    std::string out;
    for (size_t at = 0; at < text.size();) {
      if (text[at] != '\\') {
        out += text[at++];
        continue;
      }
      const char c = text[at + 1];
      at += 2;
      if (const size_t letter = kLetters.find(c); letter != npos) {
        out += kMeant[letter];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_hex(text, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
      } else if (c >= '0' && c <= '7') {
        char32_t value = 0;
        --at;
        for (int i = 0; i < 3 && at < text.size() && text[at] >= '0' && text[at] <= '7'; ++i)
          value = value * 8 + static_cast<char32_t>(text[at++] - '0');
        append_utf8(value, out);
      } else if (c == 'N') {
        fail_at(line_, "a string names a character (\\N{...}), which is not supported");
      } else if (c != '\n') {
        out += '\\', out += c;
      }
    }
    return out;
  }

  void lex_operator() {
    constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="}, kOne = "+-/*%~[](){}><=.:|,;";
    for (const std::string_view two : kTwo) {
      if (!sees(two)) continue;
      add(Kind::kOperator, two);
      return move_to(at_ + 2);
    }
    const char c = text_[at_];
    if (kOne.find(c) == npos) fail_at(line_, "unexpected character ", quoted_character());
    balance(c);
    add(Kind::kOperator, text_.substr(at_, 1));
    move_to(at_ + 1);
  }

  std::string quoted_character() const {
    size_t end = at_;
    next_code_point(text_, end);
    return str("'", text_.substr(at_, end - at_), "'");
  }

  void balance(char c) {
    if (c == '(' || c == '[' || c == '{') brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c != ')' && c != ']' && c != '}') return;
    if (brackets_.empty()) fail_at(line_, "unexpected '", c, "'");
    if (brackets_.back() != c) fail_at(line_, "unexpected '", c, "', expected '", brackets_.back(), "'");
    brackets_.pop_back();
  }

  static constexpr size_t npos = std::string_view::npos;

  std::string_view text_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool starts_line_ = true;  // the last tag took a newline
  std::string brackets_;     // that are to be closed, within a tag
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  const std::string text = with_plain_newlines(source);
  return Lexer(text).run();
}

}  // namespace headrace::jinja
