#include "headrace/chat/jinja_json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "headrace/text/utf8.h"

namespace headrace::jinja {
namespace {

void append_unit(unsigned unit, std::string& out) {
  char escape[8];
  std::snprintf(escape, sizeof(escape), "\\u%04x", unit);
  out += escape;
}

void append_ascii(char32_t c, std::string& out) {
  if (c < 0x10000) return append_unit(c, out);
  append_unit(0xD7C0 + (c >> 10), out);
  append_unit(0xDC00 + (c & 0x3FF), out);
}

void append_escaped(std::string_view bytes, bool ensure_ascii, std::string& out) {
  constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  for (size_t at = 0; at < bytes.size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(bytes, at);
    const size_t letter = c < 0x80 ? kPlain.find(static_cast<char>(c)) : kPlain.npos;
    if (letter != kPlain.npos) {
      out += '\\', out += kLetters[letter];
    } else if (c < 0x20 || (ensure_ascii && c >= 0x7F + 1)) {
      append_ascii(c, out);
    } else {
      out.append(bytes.substr(begin, at - begin));
    }
  }
}

class Writer {
 public:
  Writer(const Context& context, const JsonStyle& style) : context_(context), style_(style), out_(&context.meter) {}

  void write(const Value& value) {
    context_.meter.step();
    if (const Text* text = value.text()) return write_text(*text);
    if (value.is_none()) return out_.append("null");
    if (value.is_bool()) return out_.append(value.integer() != 0 ? "true" : "false");
    if (value.is_integer()) return out_.append(std::to_string(value.integer()));
    if (value.is_float()) return out_.append(float_json(value.number()));
    if (const List* list = value.list()) return write_list(*list);
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    fail("Object of type ", type_name(value), " is not JSON serializable");
  }

  TextPtr finish() { return out_.finish(); }

 private:
  static std::string float_json(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void write_text(const Text& text) {
    out_.append("\"");
    for_each_run({&text, 0, text.bytes.size()}, [this](std::string_view bytes, Origin origin) {
      std::string escaped;
      append_escaped(bytes, style_.ensure_ascii, escaped);
      out_.append(escaped, origin);
    });
    out_.append("\"");
  }

  void write_line_break() {
    if (!style_.indent) return;
    out_.append("\n");
    for (int32_t i = 0; i < level_; ++i) out_.append(*style_.indent);
  }

  // `write_item` writes item i; the brackets enclose them.
  template <class WriteItem>
  void write_all(std::string_view brackets, size_t count, WriteItem&& write_item) {
    out_.append(brackets.substr(0, 1));
    ++level_;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out_.append(style_.item_separator);
      write_line_break();
      write_item(i);
    }
    --level_;
    if (count > 0) write_line_break();
    out_.append(brackets.substr(1));
  }

  void write_list(const List& list) {
    write_all("[]", list.items.size(), [&](size_t i) { write(list.items[i]); });
  }

  void write_dict(const Dict& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    items.reserve(dict.items.size());
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::ranges::stable_sort(
          items, [this](const auto* a, const auto* b) { return order_of(context_, a->first, b->first) < 0; });
    }
    write_all("{}", items.size(), [&](size_t i) {
      write_key(items[i]->first);
      out_.append(style_.key_separator);
      write(items[i]->second);
    });
  }

  void write_key(const Value& key) {
    if (key.text() != nullptr) return write(key);
    if (!key.is_none() && !key.is_number()) fail("keys must be str, int, float, bool or None, not ", type_name(key));
    out_.append("\"");
    write(key);
    out_.append("\"");
  }

  const Context& context_;
  const JsonStyle& style_;
  TextBuilder out_;
  int32_t level_ = 0;
};

}  // namespace

TextPtr to_json(const Context& context, const Value& value, const JsonStyle& style) {
  Writer writer(context, style);
  writer.write(value);
  return writer.finish();
}

}  // namespace headrace::jinja
