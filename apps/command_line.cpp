#include "command_line.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <random>
#include <string_view>

#include "known_elsewhere.h"

namespace headrace::app {
namespace {

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool takes_number(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return std::ranges::any_of(std::initializer_list<std::string_view>{"INT", "UINT", "FLOAT"},
                             [&type](std::string_view name) { return type.starts_with(name); });
}

// Returns true if `rest` may follow the option's short name without a space: never for a flag, and for an option of
// numbers only text that begins as a number, so that llama.cpp's -sm is not -s with "m".
bool may_stick(const CLI::Option& option, std::string_view rest) {
  if (rest.empty()) return true;
  return takes_value(option) && (!takes_number(option) || rest.find_first_of("0123456789+-.=") == 0);
}

// The name in a word that begins with '-', without what stands behind '=' or sticks to a short name.
std::string option_name(const CLI::App& command, const std::string& word) {
  if (word.starts_with("--")) return word.substr(0, word.find('='));
  const std::string name = word.substr(0, 2);
  if (known_elsewhere(word)) return word;
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && may_stick(*option, std::string_view(word).substr(2)) ? name : word;
}

bool has_option(const CLI::App& command, const std::string& name) {
  return name.starts_with('-') && command.get_option_no_throw(name) != nullptr;
}

// The option of `command` that is meant by `name`, or `name` itself.
std::string option_here(const CLI::App& command, const std::string& name) {
  if (has_option(command, name)) return name;
  std::string dashed = name;
  if (name.starts_with("--")) std::ranges::replace(dashed, '_', '-');
  if (has_option(command, dashed)) return dashed;
  const std::string same(same_option(name).value_or(""));
  return has_option(command, same) ? same : name;
}

// Returns a random seed of 64 bits, so that --seed -1 draws another text each time.
std::string drawn_seed() {
  std::random_device device;
  return std::to_string((uint64_t{device()} << 32) | device());
}

// The value as headrace calls it. Names of types, formats and levels are lower case; elsewhere they may be "BF16",
// "Q8_0" or "INFO".
std::string value_here(const CLI::Option& option, std::string value) {
  const std::string name = name_in_errors(option);
  if (name == "--seed" && value == "-1") return drawn_seed();
  if (name.ends_with("dtype") || name == "--log-level" || name == "--to" || name == "--quantize") {
    std::ranges::transform(value, value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  }
  const auto same = same_value(name, value);
  return same ? std::string(*same) : value;
}

}  // namespace

std::string name_in_errors(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : "--" + option.get_lnames().front();
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

const CLI::App& parsed_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string path_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? "headrace" : path_of(*parent) + " " + command.get_name();
}

WordReader::Kind WordReader::read(const std::string& word) {
  only_values_ = only_values_ || (word == "--" && !value_next_);
  if (only_values_ || value_next_) {
    value_next_ = false;
    return Kind::kValue;
  }
  if (word.size() > 1 && word.starts_with('-')) return read_option(word);
  const std::vector<std::string> commands = command_names(*command_);
  if (commands.empty()) return Kind::kValue;
  name_ = word;
  if (std::ranges::find(commands, word) == commands.end()) return Kind::kUnknownCommand;
  command_ = command_->get_subcommand(word);
  path_ += " " + word;
  return Kind::kCommand;
}

WordReader::Kind WordReader::read_option(const std::string& word) {
  name_ = option_name(*command_, word);
  const std::vector<std::string> names = option_names(*command_);
  if (std::ranges::find(names, name_) == names.end()) return Kind::kUnknownOption;
  option_ = command_->get_option(name_);
  value_next_ = takes_value(*option_) && word == name_;
  return Kind::kOption;
}

std::string WordReader::in_our_words(const std::string& word) const {
  if (only_values_) return word;
  if (value_next_) return value_here(*option_, word);
  if (word.size() < 2 || !word.starts_with('-')) return word;
  const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
  if (equals != std::string::npos) {
    const std::string name = option_here(*command_, word.substr(0, equals));
    const CLI::Option* option = command_->get_option_no_throw(name);
    const std::string value = word.substr(equals + 1);
    return name + "=" + (option != nullptr ? value_here(*option, value) : value);
  }
  std::string name = option_here(*command_, word);
  const std::string begin = option_name(*command_, name);
  if (begin == name || name.starts_with("--")) return name;
  return begin + value_here(*command_->get_option(begin), name.substr(begin.size()));  // -n-1
}

std::vector<std::string> in_our_words(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  WordReader reader(app);
  for (const std::string& argument : arguments) {
    words.push_back(reader.in_our_words(argument));
    reader.read(words.back());
  }
  return words;
}

std::vector<std::string> with_help_options(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return {"--help"};
  if (arguments.front() == "version") {
    std::vector<std::string> words = arguments;
    words.front() = "--version";
    return words;
  }
  if (arguments.front() != "help") return arguments;
  std::vector<std::string> words(arguments.begin() + 1, arguments.end());
  words.emplace_back("--help");
  return words;
}

std::vector<std::string> with_empty_values(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  WordReader reader(app);
  for (const std::string& argument : arguments) {
    const bool names_option = reader.read(argument) == WordReader::Kind::kOption;
    if (names_option && takes_value(*reader.option()) && argument == reader.name() + "=") {
      words.insert(words.end(), {reader.name(), ""});
    } else {
      words.push_back(argument);
    }
  }
  return words;
}

}  // namespace headrace::app
