// The ops of _core.
#pragma once
#include "module.h"

namespace headrace::python {

void add_attention_ops(nanobind::module_& module);
void add_gdn_ops(nanobind::module_& module);
void add_row_ops(nanobind::module_& module);

}  // namespace headrace::python
