#include "template_value.h"

#include "fields.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

constexpr int kMostDepth = 100;

TemplateValue::Array template_array(nb::handle value, int depth) {
  TemplateValue::Array items;
  for (const nb::handle item : value) items.push_back(template_value(item, depth + 1));
  return items;
}

}  // namespace

TemplateValue::Object template_object(nb::handle value, int depth) {
  TemplateValue::Object fields;
  if (value.is_none()) return fields;
  nb::dict dict;
  HR_REQUIRE(nb::try_cast(value, dict), ErrorCode::kInvalidArgument, "chat: ", shown(value), " is no dict");
  for (const auto& [name, field] : dict) {
    std::string text;
    HR_REQUIRE(nb::try_cast(name, text), ErrorCode::kInvalidArgument, "chat: a key is ", shown(name),
               ", expected a str");
    fields.emplace_back(std::move(text), template_value(field, depth + 1));
  }
  return fields;
}

TemplateValue template_value(nb::handle value, int depth) {
  HR_REQUIRE(depth < kMostDepth, ErrorCode::kInvalidArgument, "chat: values are nested deeper than ", kMostDepth);
  if (value.is_none()) return {};
  if (PyBool_Check(value.ptr())) return nb::cast<bool>(value);
  int64_t integer = 0;
  if (PyLong_Check(value.ptr()) && nb::try_cast(value, integer)) return integer;
  if (PyFloat_Check(value.ptr())) return nb::cast<double>(value);
  if (PyUnicode_Check(value.ptr())) return nb::cast<std::string>(value);
  if (PyDict_Check(value.ptr())) return template_object(value, depth);
  HR_REQUIRE(PyList_Check(value.ptr()) || PyTuple_Check(value.ptr()), ErrorCode::kInvalidArgument, "chat: a value is ",
             shown(value), ", expected None, a bool, an int, a float, a str, a list or a dict");
  return template_array(value, depth);
}

}  // namespace headrace::python
