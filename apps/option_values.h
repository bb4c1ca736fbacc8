// Values of the command line, as they are written.
#pragma once
#include <CLI/CLI.hpp>

#include <string>

namespace headrace::app {

// Type names of options that take a path, or a name whose absence is a default.
// kSize: an amount of memory.
inline constexpr const char *kSize = "SIZE", *kFile = "FILE", *kDirectory = "DIRECTORY", *kModel = "MODEL",
                            *kName = "NAME";

// Checks of a number in a range. `expected` is what their sentence says of it: "an integer from 1 to 1024", unless told
// otherwise.
template <class T = int32_t>  // or uint64_t
CLI::Validator integer_in(T least, T most, std::string expected = "");
CLI::Validator number_in(double least, double most);
// Replaces an amount of memory by its bytes: "4096", "4G". K, M, G and T are powers of 1024; k, m, g and t
// are powers of 1000, as in vLLM.
CLI::Validator memory_size();

// Replaces a time by its milliseconds: "30" and "30s" are seconds, "500ms", "2m", "1h"; 0: none.
inline constexpr const char* kTime = "TIME";
CLI::Validator duration();

// "auto,float32" of an option that takes one of these; empty where any value will do.
std::string choices_of(const CLI::Option& option);
// Returns the values that the option accepts: "auto or float32", "an integer from 1 to 1024", "a file".
std::string expected_value(const CLI::Option& option);

// Every option of `app` and its commands that takes numbers or one of some names refuses what is none of its
// kind, in one sentence, and every one that takes a path refuses an empty one: a variable of a script that is not set
// is no wish for the default. CLI11 alone reads "" as 0, -1 into an unsigned number as its two's complement, and what
// is beyond 64 bits as 2^64
// - 1.
void check_values(CLI::App& app);

// A file that is written: "-" is refused. It would be standard output, which has what the command says.
void refuse_standard_output(CLI::Option& option);

}  // namespace headrace::app
