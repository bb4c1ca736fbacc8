// The loop of a program that draws cases at random until one fails: arguments, one line a case, and a watchdog.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace headrace::testing_support {

// Case i has seed `seed` + i, so that --case repeats any of them.
struct FuzzArguments {
  std::string backend = "cpu";
  uint64_t seed = 1;
  int64_t cases = 0;        // 0: as many as `seconds` allow
  double seconds = 10;      // no case begins later
  double products = 2e8;    // of a case, at most: what large ones cost
  double watchdog_s = 120;  // a case that takes longer counts as a failure
};

// From a command line, as kFuzzUsage says; --first-seed and --seeds are --seed and --cases. Error kInvalidArgument for
// another one.
FuzzArguments fuzz_arguments(int argc, char** argv);
inline constexpr std::string_view kFuzzUsage =
    "[--backend NAME] [--seed N] [--cases N | --seconds S | --case SEED] [--products P] [--watchdog S]";

struct FuzzCase {
  std::string summary;                 // one line
  std::function<std::string()> wrong;  // runs it: empty, or what is wrong
};

// Prints each case before it runs, and ends at the first that fails: the program's exit status, 1 for a failure.
// A case that outlasts the watchdog ends the process.
int fuzz(std::string_view program, const FuzzArguments& arguments,
         const std::function<FuzzCase(uint64_t seed)>& case_of);

// main() of such a program: errors become one sentence and status 2.
int fuzz_main(std::string_view program, int argc, char** argv,
              const std::function<FuzzCase(uint64_t seed, const FuzzArguments&)>& case_of);

}  // namespace headrace::testing_support
