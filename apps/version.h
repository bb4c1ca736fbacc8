// What this program is: what --version prints, and what a report of a fault should say.
#pragma once
#include <string>

namespace headrace::app {

// Lines of the version, the commit, the compiler and the CPU kernel sets. The first line is "headrace 0.1.0".
std::string version_text();

}  // namespace headrace::app
