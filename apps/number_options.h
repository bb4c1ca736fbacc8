// Numbers of the command line, as they are written.
#pragma once

namespace CLI {
class App;
}

namespace headrace::app {

// Every option of `app` and its commands that takes numbers refuses what is none of its kind, in one sentence. CLI11
// alone reads "" as 0, -1 into an unsigned number as its two's complement, and what is beyond 64 bits as 2^64 - 1.
void check_numbers(CLI::App& app);

}  // namespace headrace::app
