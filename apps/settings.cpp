#include "settings.h"

#include <toml++/toml.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "command_line.h"
#include "environment.h"
#include "headrace/core/error.h"
#include "headrace/core/printable.h"
#include "headrace/text/json_string.h"
#include "option_values.h"
#include "suggest.h"

namespace headrace::app {
namespace {

constexpr std::string_view kConfig = "config";

using Values = std::vector<std::string>;  // of one option

bool is_setting(const CLI::Option& option) {
  static const std::set<std::string, std::less<>> kOthers = {"help", "help-all", "config", "print-config"};
  return !option.get_lnames().empty() && !kOthers.contains(option.get_lnames().front());
}

bool has_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::string variable_of(std::string name) {
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return c == '-' ? '_' : static_cast<char>(std::toupper(c)); });
  return "HEADRACE_" + name;
}

// The content of the words: the options that they set, and the file that they name.
struct Line {
  const CLI::App* command = nullptr;
  std::set<const CLI::Option*> options;
  std::optional<std::string> config;
};

Line read_line(const CLI::App& app, const std::vector<std::string>& words) {
  Line line;
  WordReader reader(app);
  for (const std::string& word : words) {
    const CLI::Option* const awaits = reader.awaits_value();
    const WordReader::Kind kind = reader.read(word);
    if (awaits != nullptr && awaits->check_lname(std::string(kConfig))) line.config = word;
    if (kind == WordReader::Kind::kOption) line.options.insert(reader.option());
    if (kind == WordReader::Kind::kOption && word.starts_with("--config=")) line.config = word.substr(9);
    if (kind != WordReader::Kind::kValue || awaits != nullptr) continue;
    for (const CLI::Option* option : reader.command().get_options()) {
      if (option->get_positional()) line.options.insert(option);
    }
  }
  line.command = &reader.command();
  return line;
}

bool truth_of(const std::string& text, std::string_view where) {
  for (const std::string_view yes : {"1", "true", "yes", "on"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"0", "false", "no", "off"}) {
    if (text == no) return false;
  }
  throw Error(ErrorCode::kInvalidArgument, str(where, ": is '", printable(text), "', expected true or false"));
}

std::string text_of(const toml::node& value, std::string_view where) {
  if (const auto* text = value.as_string()) return text->get();
  if (const auto* number = value.as_integer()) return std::to_string(number->get());
  if (const auto* flag = value.as_boolean()) return flag->get() ? "true" : "false";
  if (const auto* number = value.as_floating_point()) return str(number->get());
  throw Error(ErrorCode::kInvalidArgument,
              str(where, ": expected a text, a number, true or false, or a list of these"));
}

// Options stand in no table. toml++ 3.3 asserts that a table's name begins as one.
void require_no_table(std::string_view text, const std::string& path) {
  for (int line = 1; !text.empty(); ++line) {
    const std::string_view all = text.substr(0, text.find('\n'));
    const size_t begin = all.find_first_not_of(" \t");
    HR_REQUIRE(begin == all.npos || all[begin] != '[', ErrorCode::kInvalidArgument, "--config: ", path, ", line ", line,
               ": [ begins a table, expected KEY = VALUE");
    text.remove_prefix(std::min(text.size(), all.size() + 1));
  }
}

toml::table parsed_file(const std::string& path) {
  constexpr size_t kMostBytes = size_t{1} << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  HR_REQUIRE(file.eof() || file.good(), ErrorCode::kInvalidArgument, "--config: ", path, " cannot be read");
  text.resize(static_cast<size_t>(file.gcount()));
  HR_REQUIRE(text.size() <= kMostBytes, ErrorCode::kInvalidArgument, "--config: ", path, " has more than 1 MiB");
  require_no_table(text, path);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                str("--config: ", path, ", line ", error.source().begin.line, ": ", std::string(error.description())));
  }
}

// The file's values, by option.
std::map<const CLI::Option*, Values> read_file(const CLI::App& command, const std::string& path) {
  std::map<const CLI::Option*, Values> values;
  for (const auto& [key, value] : parsed_file(path)) {
    std::string name(key.str());
    std::ranges::replace(name, '_', '-');
    const std::string where = str(path, ": ", printable(key.str()));
    const CLI::Option* const option = command.get_option_no_throw("--" + name);
    if (option == nullptr) {
      const auto guess = nearest("--" + name, option_names(command));
      throw Error(ErrorCode::kInvalidArgument, str(where, " is no option of ", path_of(command),
                                                   guess ? "; did you mean " + guess->substr(2) + "?" : ""));
    }
    HR_REQUIRE(is_setting(*option), ErrorCode::kInvalidArgument, where, " belongs on the command line");
    Values& all = values[option];
    HR_REQUIRE(all.empty(), ErrorCode::kInvalidArgument, where, ": the option is there twice");
    if (const auto* list = value.as_array()) {
      for (const toml::node& item : *list) all.push_back(text_of(item, where));
    } else {
      all.push_back(text_of(value, where));
    }
  }
  return values;
}

struct Setting {
  Values values;
  std::string origin;
};

std::optional<Setting> of_environment(const CLI::Option& option) {
  for (const std::string& name : option.get_lnames()) {
    const std::string from = variable_of(name), value(variable(from.c_str()));
    if (!value.empty()) return Setting{{value}, from};
  }
  return std::nullopt;
}

void append(const CLI::Option& option, const Setting& setting, std::vector<std::string>& words) {
  const std::string name = "--" + option.get_lnames().front();
  for (const std::string& value : setting.values) {
    if (has_value(option)) {
      words.push_back(str(name, "=", value));
    } else if (truth_of(value, setting.origin + ": " + name)) {
      words.push_back(name);
    }
  }
}

// `text`: as it was given, or as CLI11 keeps it: times in milliseconds.
std::string toml_value(const CLI::Option& option, const std::string& text) {
  if (!has_value(option)) return "true";
  if (option.get_type_name() == kTime && text.find_first_not_of("0123456789") == std::string::npos)
    return json_string(text + "ms");
  const bool is_number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos &&
                         (text.size() == 1 || text.front() != '0') && text.size() < 19;
  return is_number ? text : json_string(text);
}

// CLI11 writes the default of a list as "[a,b]".
Values default_values(const CLI::Option& option) {
  std::string text = option.get_default_str();
  if (option.get_items_expected_max() <= 1 || !text.starts_with('[') || !text.ends_with(']')) return {text};
  return CLI::detail::split(text.substr(1, text.size() - 2), ',');
}

std::string toml_values(const CLI::Option& option, const Values& values) {
  if (values.size() == 1) return toml_value(option, values.front());
  std::string out = "[";
  for (const std::string& value : values) out += (out.size() > 1 ? ", " : "") + toml_value(option, value);
  return out + "]";
}

}  // namespace

std::vector<std::string> with_settings(const CLI::App& app, std::vector<std::string> words, Origins& origins) {
  const Line line = read_line(app, words);
  const CLI::App& command = *line.command;
  if (command.get_option_no_throw("--config") == nullptr) return words;
  const std::string path = line.config.value_or(std::string(variable("HEADRACE_CONFIG")));
  std::map<const CLI::Option*, Values> file;
  if (!path.empty()) file = read_file(command, path);
  for (const CLI::Option* option : command.get_options()) {
    if (!is_setting(*option) || line.options.contains(option)) continue;
    std::optional<Setting> setting = of_environment(*option);
    if (!setting && file.contains(option)) setting = Setting{file.at(option), path};
    if (!setting) continue;
    append(*option, *setting, words);
    origins.emplace(option->get_lnames().front(), setting->origin);
  }
  return words;
}

std::string with_origin(const Origins& origins, const std::string& sentence) {
  for (const auto& [name, origin] : origins) {
    const size_t at = sentence.find("--" + name);
    const size_t end = at + 2 + name.size();
    if (at != std::string::npos && (end == sentence.size() || sentence[end] == ':' || sentence[end] == ' ')) {
      return str(sentence, " (from ", origin, ")");
    }
  }
  return sentence;
}

std::string settings_text(const CLI::App& command, const Origins& origins,
                          const std::map<std::string, std::string>& model) {
  std::string out;
  for (const CLI::Option* option : command.get_options()) {
    if (!is_setting(*option)) continue;
    const std::string& name = option->get_lnames().front();
    const auto origin = origins.find(name);
    const std::string from = origin != origins.end() ? origin->second : "command line";
    if (option->count() > 0) {
      const bool is_secret = name == "api-key";
      out += is_secret ? str("# ", name, ": ", option->count(), " of them  # ", from, '\n')
                       : str(name, " = ", toml_values(*option, option->results()), "  # ", from, '\n');
    } else if (const auto found = model.find(name); found != model.end()) {
      out += str(name, " = ", found->second, "  # generation_config.json\n");
    } else if (!option->get_default_str().empty()) {
      out += str(name, " = ", toml_values(*option, default_values(*option)), "  # default\n");
    } else {
      out += str("# ", name, has_value(*option) ? " is not set" : " = false", '\n');
    }
  }
  return out;
}

}  // namespace headrace::app
