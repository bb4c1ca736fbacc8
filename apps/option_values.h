// Values of the command line, as they are written.
#pragma once

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headrace::app {

// Type names of options that take a path, or a name whose absence is a default.
inline constexpr const char *kFile = "FILE", *kDirectory = "DIRECTORY", *kModel = "MODEL", *kName = "NAME";

// Every option of `app` and its commands that takes numbers refuses what is none of its kind, in one sentence, and
// every one that takes a path refuses an empty one: a variable of a script that is not set is no wish for the default.
// CLI11 alone reads "" as 0, -1 into an unsigned number as its two's complement, and what is beyond 64 bits as 2^64
// - 1.
void check_values(CLI::App& app);

// A file that is written: "-" is refused. It would be standard output, which has what the command says.
void refuse_standard_output(CLI::Option& option);

}  // namespace headrace::app
