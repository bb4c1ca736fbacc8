// json.dumps() as transformers calls it.
#pragma once
#include <optional>
#include <string>

#include "headrace/chat/jinja_value.h"

namespace headrace::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent = std::nullopt;  // of each level; absent: one line
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};

// Error: a value that JSON does not have.
TextPtr to_json(const Context& context, const Value& value, const JsonStyle& style);

}  // namespace headrace::jinja
