#include "headrace/chat/python_number.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "headrace/chat/jinja_operators.h"
#include "headrace/chat/jinja_text.h"
#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

constexpr int64_t kMostDigits = 1000;  // of a precision

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

int64_t take_number(std::string_view& spec) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(spec.data(), spec.data() + spec.size(), value);
  if (error == std::errc::result_out_of_range) fail("a width or precision is too large");
  spec.remove_prefix(static_cast<size_t>(end - spec.data()));
  return value;
}

bool skip(std::string_view& spec, char c) {
  if (!spec.starts_with(c)) return false;
  spec.remove_prefix(1);
  return true;
}

void take_alignment(std::string_view& spec, FormatSpec& made) {
  if (spec.empty()) return;
  size_t first = 0;
  next_code_point(spec, first);
  if (first < spec.size() && is_align(spec[first])) {
    made.fill = spec.substr(0, first);
    made.align = spec[first];
    spec.remove_prefix(first + 1);
  } else if (is_align(spec[0])) {
    made.align = spec[0];
    spec.remove_prefix(1);
  }
}

std::string grouped(std::string digits, char mark, size_t every) {
  size_t end = std::min(digits.find_first_of(".e"), digits.size());
  while (end > every) {
    end -= every;
    digits.insert(end, 1, mark);
  }
  return digits;
}

std::string sign_text(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

std::string printed(const char* format, int precision, double value) {
  const int size = std::snprintf(nullptr, 0, format, precision, value);
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), format, precision, value);
  out.pop_back();
  return out;
}

std::string magnitude_text(double value, const FormatSpec& spec) {
  const char lower = static_cast<char>(spec.type | 0x20);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  if (spec.type == '%') return printed("%.*f", precision, value * 100) + "%";
  if (lower == 'e') return printed("%.*e", precision, value);
  if (lower == 'f') return printed("%.*f", precision, value);
  if (lower == 'g') return printed(spec.alternate ? "%#.*g" : "%.*g", precision, value);
  if (spec.precision < 0) return float_repr(value);
  std::string out = printed("%.*g", std::max(precision, 1), value);  // as repr(), with that precision
  const bool whole = out.find_first_of(".e") == std::string::npos;
  return whole && precision > static_cast<int>(out.size()) ? out + ".0" : out;
}

}  // namespace

FormatSpec parse_spec(std::string_view spec) {
  FormatSpec made;
  const std::string whole(spec);
  take_alignment(spec, made);
  for (const char sign : {'+', '-', ' '})
    if (skip(spec, sign)) {
      made.sign = sign;
      break;
    }
  made.alternate = skip(spec, '#');
  if (skip(spec, '0') && made.align == '\0') made.fill = "0", made.align = '=';
  made.width = take_number(spec);
  for (const char grouping : {',', '_'})
    if (skip(spec, grouping)) made.grouping = grouping;
  if (skip(spec, '.')) {
    if (spec.empty() || spec[0] < '0' || spec[0] > '9') fail("Format specifier missing precision");
    made.precision = take_number(spec);
  }
  if (!spec.empty()) made.type = spec[0], spec.remove_prefix(1);
  if (!spec.empty()) fail("Invalid format specifier ", repr_of(whole));
  if (made.precision > kMostDigits && made.type != '\0' && made.type != 's') fail("a precision is too large");
  return made;
}

std::string integer_text(int64_t value, const FormatSpec& spec) {
  const bool negative = value < 0;
  const uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const char type = static_cast<char>(spec.type | 0x20);
  const int base = type == 'x' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  char digits[72];
  std::string out(digits, std::to_chars(digits, digits + sizeof(digits), magnitude, base).ptr);
  if (spec.type == 'X')
    std::ranges::transform(out, out.begin(), [](char c) { return c >= 'a' ? static_cast<char>(c - 32) : c; });
  if (spec.grouping != '\0') out = grouped(std::move(out), spec.grouping, base == 10 ? 3 : 4);
  const std::string prefix = spec.alternate && base != 10 ? std::string("0") + spec.type : "";
  return sign_text(negative, spec.sign) + prefix + out;
}

std::string float_text(double value, const FormatSpec& spec) {
  std::string out = magnitude_text(std::fabs(value), spec);
  if (spec.type == 'E' || spec.type == 'F' || spec.type == 'G')
    std::ranges::transform(out, out.begin(),
                           [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  if (spec.grouping != '\0') out = grouped(std::move(out), spec.grouping, 3);
  return sign_text(std::signbit(value) && !std::isnan(value), spec.sign) + out;
}

namespace {

TextPtr field_text(const Context& context, const Value& value, const FormatSpec& spec) {
  constexpr std::string_view kIntegerTypes = "dxXobcn", kFloatTypes = "eEfFgG%n";
  const bool plain = spec.type == '\0';
  if (value.is_float() || (value.is_integer() && !plain && kFloatTypes.find(spec.type) != kFloatTypes.npos)) {
    if (!plain && kFloatTypes.find(spec.type) == kFloatTypes.npos)
      fail("Unknown format code '", spec.type, "' for object of type 'float'");
    return context.text(float_text(value.number(), spec));
  }
  if (value.is_integer() && (!value.is_bool() || !plain)) {
    if (!plain && kIntegerTypes.find(spec.type) == kIntegerTypes.npos)
      fail("Unknown format code '", spec.type, "' for object of type 'int'");
    if (spec.type == 'c') fail("the format code 'c' is not supported");
    if (spec.precision >= 0) fail("Precision not allowed in integer format specifier");
    return context.text(integer_text(value.integer(), spec));
  }
  if (!plain && spec.type != 's')
    fail("Unknown format code '", spec.type, "' for object of type '", type_name(value), "'");
  TextPtr text = to_text(context, value);
  if (spec.precision < 0) return text;
  return context.part(*text, 0, offset_of(*text, static_cast<size_t>(spec.precision)));
}

}  // namespace

void append_field(const Context& context, const Value& value, const FormatSpec& spec, TextBuilder& out) {
  const bool is_number = value.is_number() && !(value.is_bool() && spec.type == '\0');
  const TextPtr text = field_text(context, value, spec);
  const int64_t more = spec.width - static_cast<int64_t>(num_code_points(*text));
  if (more <= 0) return out.append(*text);
  char align = spec.align == '\0' ? (is_number ? '>' : '<') : spec.align;
  if (align == '=' && !is_number) {
    if (spec.fill != "0") fail("'=' alignment not allowed in string format specifier");
    align = '<';
  }
  if (align == '=') {
    const size_t sign = text->bytes.find_first_of("+- ") == 0 ? 1 : 0;
    const size_t prefix = sign + (spec.alternate && text->bytes.size() > sign + 1 && spec.type != 'd' ? 2 : 0);
    out.append(TextPart{text.get(), 0, prefix});
    out.repeat(*constant_text(spec.fill), static_cast<size_t>(more));
    return out.append(TextPart{text.get(), prefix, text->bytes.size()});
  }
  const int64_t left = align == '<' ? 0 : align == '>' ? more : more / 2;
  out.append(*padded(context, *text, left, more - left, spec.fill));
}

}  // namespace headrace::jinja
