// The text of --version, which a report of a fault should contain.
#pragma once
#include <string>

namespace headrace::app {

// Lines of the version, the commit, the compiler and the CPU kernel sets. The first line is "headrace 0.1.0".
std::string version_text();

}  // namespace headrace::app
