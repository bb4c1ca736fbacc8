// A value that a chat template reads: JSON, with the order of objects kept.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace headrace {

// Cheap to copy: arrays and objects are shared and immutable.
class TemplateValue {
 public:
  using Array = std::vector<TemplateValue>;
  using Object = std::vector<std::pair<std::string, TemplateValue>>;  // names are unique

  TemplateValue() = default;  // null
  TemplateValue(bool value) : value_(value) {}
  TemplateValue(int64_t value) : value_(value) {}
  TemplateValue(double value) : value_(value) {}
  TemplateValue(std::string value) : value_(std::move(value)) {}
  TemplateValue(const char* value) : value_(std::string(value)) {}
  TemplateValue(Array value) : value_(std::make_shared<const Array>(std::move(value))) {}
  TemplateValue(Object value) : value_(std::make_shared<const Object>(std::move(value))) {}

  using Variant = std::variant<std::monostate, bool, int64_t, double, std::string, std::shared_ptr<const Array>,
                               std::shared_ptr<const Object>>;
  const Variant& variant() const { return value_; }
  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

 private:
  Variant value_;
};

}  // namespace headrace
