#include "version.h"

#include <fmt/format.h>

#include <string_view>

#include "headrace/kernels/cpu/dispatch.h"
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
  for (const cpu::KernelSet& set : cpu::kernel_sets()) built += fmt::format("{} ", set.ops->name);
  return fmt::format("headrace {}\ncommit   {}\ncompiler {}\nkernels  {}built in; {} runs here", HEADRACE_VERSION,
                     HEADRACE_COMMIT, kCompiler, built, cpu::select_kernel_set().name);
}

}  // namespace headrace::app
