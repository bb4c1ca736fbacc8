// build_info(): what was compiled, for reports of faults.
#include "apps/version.h"
#include "module.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

nb::str text(std::string_view bytes) { return nb::str(bytes.data(), bytes.size()); }

nb::typed<nb::dict, nb::str, nb::any> build_info() {
  const app::BuildInfo built = app::build_info();
  nb::list kernels;
  for (const std::string_view name : built.kernel_sets) kernels.append(text(name));
  nb::typed<nb::dict, nb::str, nb::any> info;
  info["version"] = text(built.version);
  info["commit"] = text(built.commit);
  info["compiler"] = text(built.compiler);
  info["kernel_sets"] = kernels;
  info["selected_kernel_set"] = text(built.selected);
  info["cuda"] = HEADRACE_HAS_CUDA != 0;
  return info;
}

}  // namespace

void add_build_info(nb::module_& module) {
  module.attr("__version__") = text(app::build_info().version);
  module.def(
      "build_info", build_info,
      "Returns the version, the commit, the compiler, the CPU kernel sets that are built in (best first), the one "
      "that this machine selects, and whether the CUDA part was built.");
}

}  // namespace headrace::python
