// From a command line to a command that ran.
#pragma once
#include <string>
#include <vector>

#include "settings.h"

namespace CLI {
class App;
}

namespace headrace::app {

// Reads `arguments` into `app`, which calls the command back that they name; prints the help or the version that they
// ask for. Returns 0, or kUsage after one sentence on standard error. Errors of the command are thrown in the words of
// its options. `origins` gets those of values that the line does not have (with_settings), before the command runs.
int parse_line(CLI::App& app, const std::vector<std::string>& arguments, Origins& origins);

}  // namespace headrace::app
