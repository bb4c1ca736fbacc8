// The text of --version, which a report of a fault should contain.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace headrace::app {

struct BuildInfo {
  std::string_view version, commit, compiler;  // "0.1.0"
  std::vector<std::string_view> kernel_sets;   // CPU kernels that are built in, best first
  std::string_view selected;                   // the kernel set that runs on this machine
};
BuildInfo build_info();

// Lines of the version, the commit, the compiler and the CPU kernel sets. The first line is "headrace 0.1.0".
std::string version_text();

}  // namespace headrace::app
