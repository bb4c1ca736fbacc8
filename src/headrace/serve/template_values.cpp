#include "headrace/serve/template_values.h"

#include "headrace/serve/json_body.h"

namespace headrace {

TemplateValue template_value(const JsonNode& node) {
  if (node.is_null()) return {};
  if (node.is_string()) return node.text();
  if (node.is_bool()) return node.flag();
  if (node.is_integer()) return node.integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  if (node.is_array()) {
    TemplateValue::Array items;
    for (const JsonNode& item : node.items(std::numeric_limits<size_t>::max())) items.push_back(template_value(item));
    return items;
  }
  if (!node.is_object()) return node.number(std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max());
  TemplateValue::Object members;
  const std::string prefix = node.name() + ".";
  for (const JsonNode& member : node.members(prefix)) {
    members.emplace_back(member.name().substr(prefix.size()), template_value(member));
  }
  return members;
}

}  // namespace headrace
