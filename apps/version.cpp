#include "version.h"

#include <string_view>

#include "headrace/core/error.h"
#include "headrace/ops/cpu/dispatch.h"
#include "headrace_commit.h"  // written by cmake/write_commit.cmake; this file alone reads it

namespace headrace::app {
namespace {

#ifdef __clang__
constexpr std::string_view kCompiler = "Clang " __clang_version__;
#else
constexpr std::string_view kCompiler = "GCC " __VERSION__;
#endif

}  // namespace

std::string version_text() {
  std::string built;
  for (const cpu::KernelSet& set : cpu::kernel_sets()) built += std::string(set.ops->name) + " ";
  return str("headrace ", HEADRACE_VERSION, "\ncommit   ", HEADRACE_COMMIT, "\ncompiler ", kCompiler, "\nkernels  ",
             built, "built in; ", cpu::select_kernel_set().name, " is selected");
}

}  // namespace headrace::app
