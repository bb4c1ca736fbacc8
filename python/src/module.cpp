// The extension module headrace._core. What users import is Python, in python/headrace; its names are stable, these are
// not.
#include "module.h"

#include "released_gil.h"

NB_MODULE(_core, module) {
  module.doc() = "The compiled part of headrace; use the package headrace.";
  headrace::python::add_errors(module);
  headrace::python::add_interpreter_end(module);
  headrace::python::add_build_info(module);
  headrace::python::add_engine(module);
  headrace::python::add_request_stream(module);
  headrace::python::add_ops(module);
}
