// Options that the command line leaves open: from variables of the environment and a file.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace headrace::app {

// The origin of an option's value that the line does not have: "HEADRACE_PORT", or the file's path. By the
// option's first long name, without dashes in front.
using Origins = std::map<std::string, std::string, std::less<>>;

// Returns `words` with "--name=value" behind them for each option that they leave open, that a command with the option
// --config has, and that the variable HEADRACE_NAME or else the file of --config (TOML; keys are long names of options)
// sets. Adds these to `origins`. Error kInvalidArgument, one sentence with the origin: a file that cannot be read, or
// with a key that is no option's or a value that no option can have.
std::vector<std::string> with_settings(const CLI::App& app, std::vector<std::string> words, Origins& origins);

// Returns `sentence` ("--port: is ...") with the origin of the option's value, if it comes from one.
std::string with_origin(const Origins& origins, const std::string& sentence);

// Returns the settings of `command` as a file for --config, with the origin of each as a comment. `model`: values that
// come from the model's generation_config.json, by option. Keys of the API are not shown.
std::string settings_text(const CLI::App& command, const Origins& origins,
                          const std::map<std::string, std::string>& model);

}  // namespace headrace::app
