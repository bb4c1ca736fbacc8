// The parts of the module headrace._core: each add_ function adds the names of one subject. Functions that may take
// longer than a microsecond release the GIL.
#pragma once
#include <nanobind/nanobind.h>

#include "headrace/core/error.h"

namespace headrace::python {

void add_build_info(nanobind::module_& module);
void add_engine(nanobind::module_& module);
void add_errors(nanobind::module_& module);
void add_request_stream(nanobind::module_& module);  // after add_engine
void add_ops(nanobind::module_& module);

// Returns the Python exception for `error`, of headrace/errors.py. What bindings throw is translated without it.
nanobind::object exception_of(const Error& error);

}  // namespace headrace::python
