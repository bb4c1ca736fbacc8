// One function of _core per op, called by headrace/ops with every argument by position.
#include "ops.h"
#include "op_threads.h"

namespace headrace::python {

void add_ops(nanobind::module_& module) {
  add_attention_ops(module);
  add_gdn_ops(module);
  add_row_ops(module);
  module.def("num_threads", op_threads);
  module.def("set_num_threads", set_op_threads);
}

}  // namespace headrace::python
