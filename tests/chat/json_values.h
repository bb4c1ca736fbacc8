// Reads the chat inputs of test files.
#pragma once
#include <simdjson.h>

#include <string>

#include "headrace/chat/chat_template.h"

namespace headrace::testing {

inline TemplateValue template_value(simdjson::dom::element element) {
  using Type = simdjson::dom::element_type;
  switch (element.type()) {
    case Type::NULL_VALUE: return {};
    case Type::BOOL: return bool(element);
    case Type::INT64: return int64_t(element);
    case Type::UINT64: return static_cast<double>(uint64_t(element));
    case Type::DOUBLE: return double(element);
    case Type::STRING: return std::string(std::string_view(element));
    case Type::ARRAY: {
      TemplateValue::Array array;
      for (const auto item : simdjson::dom::array(element)) array.push_back(template_value(item));
      return array;
    }
    case Type::OBJECT: break;
  }
  TemplateValue::Object object;
  for (const auto& [name, value] : simdjson::dom::object(element))
    object.emplace_back(std::string(name), template_value(value));
  return object;
}

// {"messages": [...], "tools": [...], "add_generation_prompt": true, "continue_final_message": false, "kwargs": {...}};
// all but the messages may be absent.
inline ChatInput chat_input(simdjson::dom::element element) {
  ChatInput input;
  const auto array = [](const TemplateValue& value) {
    return *std::get<std::shared_ptr<const TemplateValue::Array>>(value.variant());
  };
  for (const auto& [name, value] : simdjson::dom::object(element)) {
    if (name == "messages") input.messages = array(template_value(value));
    if (name == "tools") input.tools = template_value(value);
    if (name == "add_generation_prompt") input.add_generation_prompt = bool(value);
    if (name == "continue_final_message") input.continue_final_message = bool(value);
    if (name == "kwargs") {
      const TemplateValue kwargs = template_value(value);
      input.kwargs = *std::get<std::shared_ptr<const TemplateValue::Object>>(kwargs.variant());
    }
  }
  return input;
}

}  // namespace headrace::testing
