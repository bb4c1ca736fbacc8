// Python's values as a chat template reads them.
#pragma once
#include <nanobind/nanobind.h>

#include "headrace/chat/template_value.h"

namespace headrace::python {

// None, bool, int, float, str, lists, tuples and dicts of them. Error kInvalidArgument for another type, or values
// nested deeper than 100.
TemplateValue template_value(nanobind::handle value, int depth = 0);
TemplateValue::Object template_object(nanobind::handle value, int depth = 0);  // of a dict, or None

}  // namespace headrace::python
