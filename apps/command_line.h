// The words of a command line, each as CLI11 takes it, before it does.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headrace::app {

std::vector<std::string> option_names(const CLI::App& app);  // "--max-tokens", "-n"
std::vector<std::string> command_names(const CLI::App& app);

// The innermost command of the line that was parsed.
const CLI::App& parsed_command(const CLI::App& app);
// The words that name a command, "headrace eval puzzles".
std::string path_of(const CLI::App& command);

class WordReader {
 public:
  enum class Kind : unsigned char { kOption, kUnknownOption, kCommand, kUnknownCommand, kValue };

  // `app` is not owned.
  explicit WordReader(const CLI::App& app) : command_(&app) {}

  // The next word; kValue is an option's, a positional one, "--" and all that stands behind it. What follows an unknown
  // word is read as if that one were not there.
  Kind read(const std::string& word);

  // `word`, which is about to be read, as headrace calls it where another program has another name for an option of the
  // command, or for its value: "--max-tokens=20" for "--gen_length=20", "bfloat16" behind "--dtype" for "bf16".
  std::string in_our_words(const std::string& word) const;

  // The option whose value the next word is; not owned, null where it is none.
  const CLI::Option* awaits_value() const { return value_next_ ? option_ : nullptr; }
  const CLI::App& command() const { return *command_; }  // that the words so far have chosen
  const std::string& path() const { return path_; }      // its name, "headrace eval puzzles"
  const std::string& name() const { return name_; }      // of the option or command that was read last
  const CLI::Option* option() const { return option_; }  // the option that was read last; not owned

 private:
  Kind read_option(const std::string& word);

  const CLI::App* command_;
  const CLI::Option* option_ = nullptr;
  std::string path_ = "headrace", name_;
  bool value_next_ = false, only_values_ = false;
};

// `arguments` in the names that headrace has for options and values (WordReader::in_our_words).
std::vector<std::string> in_our_words(const CLI::App& app, const std::vector<std::string>& arguments);

// Turns the commands "help generate" and "version" into "generate --help" and "--version". No arguments at all become
// "--help". Other arguments stay.
std::vector<std::string> with_help_options(const std::vector<std::string>& arguments);

// The option's first long name, "--max-tokens", or what it has in its place.
std::string name_in_errors(const CLI::Option& option);

// `arguments` with "--option=" as two words, of which the second is empty: CLI11 takes the next word for the value, be
// it the model.
std::vector<std::string> with_empty_values(const CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace headrace::app
