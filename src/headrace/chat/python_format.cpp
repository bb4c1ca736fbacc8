#include "headrace/chat/python_format.h"

#include <algorithm>
#include <cmath>

#include "headrace/chat/jinja_access.h"
#include "headrace/chat/python_number.h"

namespace headrace::jinja {
namespace {

constexpr size_t npos = std::string_view::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// One "%" conversion after another.
class Printf {
 public:
  Printf(const Context& context, const Text& format, const Value& arguments)
      : context_(context), format_(format), arguments_(arguments), out_(&context.meter) {}

  Value run() {
    const std::string_view bytes = format_.bytes;
    while (true) {
      const size_t percent = bytes.find('%', at_);
      if (percent == npos) break;
      out_.append(TextPart{&format_, at_, percent});
      at_ = percent + 1;
      convert();
    }
    out_.append(TextPart{&format_, at_, bytes.size()});
    const bool unused = is_tuple() ? next_ < arguments_.list()->items.size()
                                   : next_ == 0 && !used_names_ && arguments_.dict() == nullptr && !is_container();
    if (unused) fail("not all arguments converted during string formatting");
    return out_.finish();
  }

 private:
  bool is_tuple() const { return arguments_.list() != nullptr && arguments_.list()->kind == List::Kind::kTuple; }
  bool is_container() const { return arguments_.list() != nullptr; }

  char peek() const {
    if (at_ >= format_.bytes.size()) fail("incomplete format");
    return format_.bytes[at_];
  }

  Value next_argument() {
    if (!is_tuple()) {
      if (next_++ > 0) fail("not enough arguments for format string");
      return arguments_;
    }
    if (next_ >= arguments_.list()->items.size()) fail("not enough arguments for format string");
    return arguments_.list()->items[next_++];
  }

  Value named_argument() {
    const size_t begin = ++at_, end = format_.bytes.find(')', begin);
    if (end == npos) fail("incomplete format key");
    if (arguments_.dict() == nullptr) fail("format requires a mapping");
    const std::string name = format_.bytes.substr(begin, end - begin);
    const Value* value = find(*arguments_.dict(), name);
    if (value == nullptr) fail(repr_of(name));
    at_ = end + 1;
    used_names_ = true;
    return *value;
  }

  int64_t number() {
    if (peek() == '*') {
      ++at_;
      const Value value = next_argument();
      if (!value.is_integer()) fail("* wants int");
      return value.integer();
    }
    int64_t value = 0;
    for (; is_digit(peek()); ++at_) value = std::min<int64_t>(value * 10 + (peek() - '0'), INT32_MAX);
    return value;
  }

  void convert() {
    std::optional<Value> value;
    if (peek() == '(') value = named_argument();
    FormatSpec spec{.align = '>'};
    bool zero = false;
    for (;; ++at_) {
      const char c = peek();
      if (c == '-') {
        spec.align = '<';
      } else if (c == '+' || (c == ' ' && spec.sign == '-')) {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c == '0') {
        zero = true;
      } else if (c != ' ') {
        break;
      }
    }
    spec.width = number();
    if (spec.width < 0) spec.width = -spec.width, spec.align = '<';
    if (peek() == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(number(), 0);
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++at_;
    const char type = peek();
    ++at_;
    if (type == '%') return out_.append("%");
    if (!value) value = next_argument();
    if (zero && spec.align != '<') spec.fill = "0", spec.align = '=';
    append(type, *value, spec);
  }

  void append(char type, const Value& value, FormatSpec spec) {
    if (type == 's' || type == 'r' || type == 'a') {
      if (spec.align == '=') spec.fill = " ", spec.align = '>';
      TextBuilder text(&context_.meter);
      type == 's' ? append_str(context_, value, text) : append_repr(context_, value, text);
      return append_field(context_, text.finish(), spec, out_);
    }
    if (type == 'c' && value.text() != nullptr && num_code_points(*value.text()) == 1) {
      if (spec.align == '=') spec.fill = " ", spec.align = '>';
      return append_field(context_, value, spec, out_);
    }
    if (std::string_view("eEfFgG").find(type) != npos) {
      spec.type = type;
      if (!value.is_number()) fail("must be real number, not ", type_name(value));
      if (spec.precision > 1000) fail("a precision is too large");
      return append_field(context_, value.number(), spec, out_);
    }
    if (std::string_view("diuxXo").find(type) == npos) fail("unsupported format character '", type, "'");
    append_integer(type, value, spec);
  }

  void append_integer(char type, const Value& value, FormatSpec spec) {
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (!value.is_integer() && !(decimal && value.is_float()))
      fail("%", type, " format: a", decimal ? " real number" : "n integer", " is required, not ", type_name(value));
    spec.type = decimal ? 'd' : type;
    const double whole = std::trunc(value.number());
    if (value.is_float() && !(std::fabs(whole) < 9e18)) fail("an integer has more than 64 bits");
    const int64_t number = value.is_integer() ? value.integer() : static_cast<int64_t>(whole);
    const int64_t digits = std::exchange(spec.precision, -1);
    std::string text = integer_text(number, spec);
    const size_t sign = text.find_first_of("+- ") == 0 ? 1 : 0;
    const int64_t more = digits - static_cast<int64_t>(text.size() - sign);
    if (digits > 1000) fail("a precision is too large");
    if (more > 0) text.insert(sign, static_cast<size_t>(more), '0');
    if (digits < 0 || spec.align != '=') return append_number(text, spec);
    append_number(text, spec);
  }

  // A number that is written already, in its field.
  void append_number(const std::string& text, const FormatSpec& spec) {
    const auto more = static_cast<size_t>(std::max<int64_t>(spec.width - static_cast<int64_t>(text.size()), 0));
    const size_t sign = text.find_first_of("+- ") == 0 ? 1 : 0;
    const size_t prefix = spec.align == '=' ? sign : 0;
    out_.append(text.substr(0, prefix));
    if (spec.align != '<') out_.repeat(*constant_text(spec.align == '=' ? "0" : " "), more);
    out_.append(text.substr(prefix));
    if (spec.align == '<') out_.repeat(*constant_text(" "), more);
  }

  const Context& context_;
  const Text& format_;
  const Value& arguments_;
  TextBuilder out_;
  size_t at_ = 0, next_ = 0;
  bool used_names_ = false;
};

// One "{}" field after another.
class Braces {
 public:
  Braces(const Context& context, const Text& format, const CallArguments& arguments)
      : context_(context), format_(format), arguments_(arguments), out_(&context.meter) {}

  Value run() {
    const std::string_view bytes = format_.bytes;
    for (size_t brace = 0; (brace = bytes.find_first_of("{}", at_)) != npos;) {
      out_.append(TextPart{&format_, at_, brace});
      at_ = brace + 1;
      if (at_ < bytes.size() && bytes[at_] == bytes[brace]) {
        out_.append(TextPart{&format_, at_, at_ + 1});
        ++at_;
      } else if (bytes[brace] == '}') {
        fail("Single '}' encountered in format string");
      } else {
        append_replacement();
      }
    }
    out_.append(TextPart{&format_, at_, bytes.size()});
    return out_.finish();
  }

 private:
  void append_replacement() {
    const std::string_view bytes = format_.bytes;
    const size_t end = bytes.find('}', at_);
    if (end == npos) fail("Single '{' encountered in format string");
    std::string_view field = bytes.substr(at_, end - at_);
    if (field.find('{') != npos) fail("a field within a field of format() is not supported");
    at_ = end + 1;
    std::string_view spec;
    if (const size_t colon = field.find(':'); colon != npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != npos) {
      if (mark + 2 != field.size()) fail("expected ':' after conversion specifier");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    append_converted(value_of(field), conversion, spec);
  }

  void append_converted(const Value& value, char conversion, std::string_view spec) {
    if (conversion != '\0' && conversion != 's' && conversion != 'r')
      fail("Unknown conversion specifier '", conversion, "'");
    if (conversion == '\0' && !spec.empty() && (value.is_none() || value.list() != nullptr || value.dict() != nullptr))
      fail("unsupported format string passed to ", type_name(value), ".__format__");
    if (conversion == '\0' && (value.is_number() || value.text() != nullptr))
      return append_field(context_, value, parse_spec(spec), out_);
    TextBuilder text(&context_.meter);
    conversion == 'r' ? append_repr(context_, value, text) : append_str(context_, value, text);
    append_field(context_, text.finish(), parse_spec(spec), out_);
  }

  Value value_of(std::string_view field) {
    const size_t end = std::min(field.find_first_of(".["), field.size());
    Value value = argument(field.substr(0, end));
    for (std::string_view rest = field.substr(end); !rest.empty();) value = part_of(value, rest);
    return value;
  }

  Value argument(std::string_view name) {
    if (name.empty() || std::ranges::all_of(name, is_digit)) {
      const size_t place =
          name.empty() ? next_++ : static_cast<size_t>(std::min(9999, std::atoi(std::string(name).c_str())));
      if (place >= arguments_.positional.size())
        fail("Replacement index ", place, " out of range for positional args tuple");
      return arguments_.positional[place];
    }
    for (const auto& [key, value] : arguments_.keywords)
      if (key->bytes == name) return value;
    fail(repr_of(name));
  }

  Value part_of(const Value& value, std::string_view& rest) const {
    if (rest[0] == '.') {
      const size_t end = std::min(rest.find_first_of(".[", 1), rest.size());
      const TextPtr name = context_.text(rest.substr(1, end - 1));
      rest.remove_prefix(end);
      return attribute_of(context_, value, *name);
    }
    const size_t end = rest.find(']');
    if (rest[0] != '[' || end == npos) fail("Missing ']' in format string");
    const std::string name(rest.substr(1, end - 1));
    rest.remove_prefix(end + 1);
    const bool is_index = !name.empty() && name.size() < 10 && std::ranges::all_of(name, is_digit);
    return item_of(context_, value, is_index ? Value(int64_t{std::atoi(name.c_str())}) : Value(context_.text(name)));
  }

  const Context& context_;
  const Text& format_;
  const CallArguments& arguments_;
  TextBuilder out_;
  size_t at_ = 0, next_ = 0;
};

}  // namespace

Value printf_formatted(const Context& context, const Text& format, const Value& arguments) {
  return Printf(context, format, arguments).run();
}

Value brace_formatted(const Context& context, const Text& format, const CallArguments& arguments) {
  return Braces(context, format, arguments).run();
}

}  // namespace headrace::jinja
