// Python's str() and repr().
#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <cstdio>

#include "headrace/chat/jinja_value.h"
#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
  }
}

std::string hex_escape(char32_t c) {
  char out[16];
  const char* format = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(out, sizeof(out), format, static_cast<unsigned>(c));
  return out;
}

void append_escaped(std::string_view bytes, char quote, std::string& out) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(bytes, at);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\', out += static_cast<char>(c);
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (is_printable(c)) {
      out.append(bytes.substr(begin, at - begin));
    } else {
      out += hex_escape(c);
    }
  }
}

char quote_of(std::string_view bytes) {
  const bool single = bytes.find('\'') != bytes.npos, twofold = bytes.find('"') != bytes.npos;
  return single && !twofold ? '"' : '\'';
}

void append_text_repr(const Text& text, TextBuilder& out) {
  const char quote = quote_of(text.bytes);
  const std::string_view mark(&quote, 1);
  out.append(mark);
  for_each_run({&text, 0, text.bytes.size()}, [&](std::string_view bytes, Origin origin) {
    std::string escaped;
    append_escaped(bytes, quote, escaped);
    out.append(escaped, origin);
  });
  out.append(mark);
}

void append_items(const Context& context, const List& list, TextBuilder& out) {
  const bool tuple = list.kind == List::Kind::kTuple;
  out.append(tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(context, list.items[i], out);
  }
  if (tuple && list.items.size() == 1) out.append(",");
  out.append(tuple ? ")" : "]");
}

void append_dict(const Context& context, const Dict& dict, TextBuilder& out) {
  out.append("{");
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(context, dict.items[i].first, out);
    out.append(": ");
    append_repr(context, dict.items[i].second, out);
  }
  out.append("}");
}

void append_range(const Range& range, TextBuilder& out) {
  out.append(str("range(", range.start, ", ", range.stop));
  if (range.step != 1) out.append(str(", ", range.step));
  out.append(")");
}

void append_object(const Context& context, const Value& value, TextBuilder& out) {
  const Object& object = *value.object();
  if (object.kind == Object::Kind::kRange) return append_range(static_cast<const Range&>(object), out);
  if (object.kind != Object::Kind::kView) fail("a ", type_name(value), " cannot be printed");
  out.append(type_name(value));
  out.append("(");
  append_items(context, *items_of(context, value), out);
  out.append(")");
}

}  // namespace

std::string repr_of(std::string_view text) {
  const char quote = quote_of(text);
  std::string out(1, quote);
  append_escaped(text, quote, out);
  return out += quote;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  const int exponent = std::atoi(std::string(text.substr(text.find('e') + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  char fixed[64];
  const auto fixed_end = std::to_chars(fixed, fixed + sizeof(fixed), value, std::chars_format::fixed).ptr;
  std::string out(fixed, fixed_end);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

void append_repr(const Context& context, const Value& value, TextBuilder& out) {
  context.meter.step();
  if (const Text* text = value.text()) return append_text_repr(*text, out);
  if (const List* list = value.list()) return append_items(context, *list, out);
  if (const Dict* dict = value.dict()) return append_dict(context, *dict, out);
  if (value.is_undefined()) return out.append("Undefined");
  append_str(context, value, out);
}

void append_str(const Context& context, const Value& value, TextBuilder& out) {
  if (const Text* text = value.text()) return out.append(*text);
  if (value.is_undefined()) return;
  if (value.is_none()) return out.append("None");
  if (value.is_bool()) return out.append(value.integer() != 0 ? "True" : "False");
  if (value.is_integer()) return out.append(std::to_string(value.integer()));
  if (value.is_float()) return out.append(float_repr(value.number()));
  if (value.object() != nullptr) return append_object(context, value, out);
  append_repr(context, value, out);
}

TextPtr to_text(const Context& context, const Value& value) {
  if (value.text() != nullptr) return value.text_ptr();
  TextBuilder builder(&context.meter);
  append_str(context, value, builder);
  return builder.finish();
}

}  // namespace headrace::jinja
