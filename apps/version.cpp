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

BuildInfo build_info() {
  BuildInfo info{.version = HEADRACE_VERSION,
                 .commit = HEADRACE_COMMIT,
                 .compiler = kCompiler,
                 .selected = cpu::select_kernel_set().name};
  for (const cpu::KernelSet& set : cpu::kernel_sets()) info.kernel_sets.push_back(set.ops->name);
  return info;
}

std::string version_text() {
  const BuildInfo info = build_info();
  std::string built;
  for (const std::string_view name : info.kernel_sets) built += str(name, " ");
  return str("headrace ", info.version, "\ncommit   ", info.commit, "\ncompiler ", info.compiler, "\nkernels  ", built,
             "built in; ", info.selected, " is selected");
}

}  // namespace headrace::app
