#include "suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "command_line.h"
#include "known_elsewhere.h"
#include "option_values.h"

namespace headrace::app {
namespace {

// Damerau and Levenshtein's distance, each letter moved once at most.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string sentence(std::string_view kind, std::string_view word, std::string_view of,
                     const std::vector<std::string>& candidates, std::string_view otherwise = "") {
  std::string text = fmt::format("unknown {} '{}' of {}", kind, word, of);
  if (const auto here = known_elsewhere(word)) return text + fmt::format(": {}", *here);
  const std::optional<std::string> guess = nearest(word, candidates);
  if (guess) return text + fmt::format("; did you mean '{}'?", *guess);
  return text + fmt::format("; {}'{} --help' lists what there is", otherwise, of);
}

// demo is a short form of generate, with the same model.
constexpr std::string_view kShortForm = "demo";

// A value that other programs take and headrace does not.
std::optional<std::string> refused_value(const CLI::Option& option, const std::string& value) {
  const std::string name = name_in_errors(option);
  const auto why = value_known_elsewhere(name, value);
  return why ? std::optional(fmt::format("{} is {}: {}", name, value, *why)) : std::nullopt;
}

constexpr std::string_view kWithText = "headrace generate [MODEL] \"TEXT\" completes a text, and ";

// A line without a command, as llama.cpp's.
bool is_option_of_generate(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> commands = command_names(app);
  if (std::ranges::find(commands, "generate") == commands.end()) return false;
  WordReader reader(app);
  reader.read("generate");
  return reader.read(reader.in_our_words(word)) == WordReader::Kind::kOption;
}

std::string unknown_option(const CLI::App& app, const WordReader& reader, const std::string& word) {
  const CLI::App& command = reader.command();
  if (&command == &app && is_option_of_generate(app, word))
    return fmt::format("unknown option '{}' of headrace; headrace generate {} ... takes it", reader.name(),
                       reader.name());
  if (command.get_name() == kShortForm && app.get_subcommand("generate")->get_option_no_throw(reader.name()) != nullptr)
    return fmt::format(
        "unknown option '{}' of {}: headrace generate takes it, with the same model unless told otherwise",
        reader.name(), reader.path());
  return sentence("option", reader.name(), reader.path(), option_names(command));
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() < 3) return std::nullopt;  // every short option is near to every other
  const auto continues = [word](const std::string& name) { return word.size() > 3 && name.starts_with(word); };
  const auto longer = std::ranges::find_if(candidates, continues);
  if (longer != candidates.end()) return *longer;
  const auto far = [word](const std::string& name) { return name.size() < 3 ? word.size() : distance(word, name); };
  const auto best = std::ranges::min_element(candidates, {}, far);
  const size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  const size_t most = letters < 6 ? 1 : std::max<size_t>(2, word.size() / 3);
  if (best == candidates.end() || far(*best) > most) return std::nullopt;
  return *best;
}

std::optional<std::string> unknown_argument(const CLI::App& app, const std::vector<std::string>& arguments) {
  using Kind = WordReader::Kind;
  WordReader reader(app);
  bool help_or_version = false;  // needs no command
  for (const std::string& word : arguments) {
    if (reader.awaits_value() != nullptr) {
      if (auto refused = refused_value(*reader.awaits_value(), word)) return refused;
    }
    const Kind kind = reader.read(word);
    const CLI::App& command = reader.command();
    if (kind == Kind::kUnknownOption) return unknown_option(app, reader, word);
    if (kind == Kind::kUnknownCommand)
      return sentence("command", word, reader.path(), command_names(command), &command == &app ? kWithText : "");
    if (kind != Kind::kOption) continue;
    const size_t equals = word.find('=');
    if (equals == reader.name().size()) {
      if (auto refused = refused_value(*reader.option(), word.substr(equals + 1))) return refused;
    }
    const CLI::Option* option = reader.option();
    help_or_version = help_or_version || option == command.get_help_ptr() || option == command.get_help_all_ptr() ||
                      option == command.get_version_ptr();
  }
  if (const CLI::Option* option = reader.awaits_value(); option != nullptr && option->get_items_expected_min() > 0)
    return fmt::format("{}: has no value, expected {}", name_in_errors(*option), expected_value(*option));
  if (!help_or_version && !command_names(reader.command()).empty())
    return fmt::format("{} needs a command; '{} --help' lists what there is", reader.path(), reader.path());
  return std::nullopt;
}

std::optional<std::string> given_again(const CLI::App& app) {
  for (const CLI::Option* option : parsed_command(app).get_options()) {
    const int most = option->get_items_expected_max();  // 0: a flag
    if (most == 0 || option->count() <= static_cast<size_t>(most)) continue;
    const std::string also =
        option->get_positional() && option->nonpositional()
            ? fmt::format("; a word without an option in front of it is the {}, too", option->get_name(true))
            : "";
    return fmt::format("{}: is given {} times, expected once{}", option->get_name(), option->count(), also);
  }
  return std::nullopt;
}

std::string left_over(const CLI::App& app) {
  const CLI::App& command = parsed_command(app);
  const std::string name = command.get_name();
  const std::string_view otherwise = name == kShortForm
                                         ? "; its prompt goes behind -p, and another model to headrace generate"
                                     : name == "generate" ? "; a text of several words goes in quotes"
                                                          : "";
  return fmt::format("'{}' is more than {} takes{}", fmt::join(command.remaining(), " "), name, otherwise);
}

std::optional<std::string> ill_matched(const CLI::App& app) {
  const CLI::App& command = parsed_command(app);
  const auto given = [](const CLI::Option* option) { return option->count() > 0; };
  for (const CLI::Option* option : command.get_options(given)) {
    const auto excluded = option->get_excludes();
    const auto other = std::ranges::find_if(excluded, given);
    if (other != excluded.end())
      return fmt::format("{} and {}: both are given, expected one of them", name_in_errors(*option),
                         name_in_errors(**other));
    const auto needed = option->get_needs();
    const auto absent = std::ranges::find_if_not(needed, given);
    if (absent != needed.end())
      return fmt::format("{}: needs {} beside it", name_in_errors(*option), name_in_errors(**absent));
  }
  return std::nullopt;
}

std::optional<std::string> missing_option(const CLI::App& app) {
  const CLI::App& command = parsed_command(app);
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    const std::string_view article = option->get_positional() && !option->nonpositional() ? "a " : "";
    return fmt::format("{} needs {}{}: {}", path_of(command), article, name_in_errors(*option),
                       expected_value(*option));
  }
  return std::nullopt;
}

std::string with_names(const CLI::App& app, const std::vector<std::string>& words, const std::string& why) {
  const auto about = [&why](const std::string& name) { return why.starts_with(name + ": "); };
  WordReader reader(app);
  for (const std::string& word : words) {
    if (reader.read(word) != WordReader::Kind::kOption) continue;
    const std::string name = name_in_errors(*reader.option());
    if (reader.name() != name && about(name)) return reader.name() + ", " + why;
  }
  for (const CLI::Option* option : reader.command().get_options()) {
    const bool word = option->get_lnames().empty() && option->get_positional();
    if (word && about(option->get_name(true))) return reader.command().get_name() + why.substr(why.find(':'));
  }
  return why;
}

}  // namespace headrace::app
