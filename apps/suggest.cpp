#include "suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "command_line.h"
#include "known_elsewhere.h"

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
                     const std::vector<std::string>& candidates) {
  std::string text = fmt::format("unknown {} '{}' of {}", kind, word, of);
  if (const auto here = known_elsewhere(word)) return text + fmt::format(": {}", *here);
  const std::optional<std::string> guess = nearest(word, candidates);
  if (guess) return text + fmt::format("; did you mean '{}'?", *guess);
  return text + fmt::format("; '{} --help' lists what there is", of);
}

// demo is a short form of generate, with the same model.
constexpr std::string_view kShortForm = "demo";

// A value that other programs take and headrace does not.
std::optional<std::string> refused_value(const CLI::Option& option, const std::string& value) {
  const std::string name = name_in_errors(option);
  const auto why = value_known_elsewhere(name, value);
  return why ? std::optional(fmt::format("{} is {}: {}", name, value, *why)) : std::nullopt;
}

std::string unknown_option(const CLI::App& app, const WordReader& reader) {
  const CLI::App& command = reader.command();
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
  if (best == candidates.end() || far(*best) > std::max<size_t>(2, word.size() / 3)) return std::nullopt;
  return *best;
}

std::optional<std::string> unknown_argument(const CLI::App& app, const std::vector<std::string>& arguments) {
  using Kind = WordReader::Kind;
  WordReader reader(app);
  bool asks = false;  // for help or the version, which needs no command
  for (const std::string& word : arguments) {
    if (reader.awaits_value() != nullptr) {
      if (auto refused = refused_value(*reader.awaits_value(), word)) return refused;
    }
    const Kind kind = reader.read(word);
    const CLI::App& command = reader.command();
    if (kind == Kind::kUnknownOption) return unknown_option(app, reader);
    if (kind == Kind::kUnknownCommand) return sentence("command", word, reader.path(), command_names(command));
    if (kind != Kind::kOption) continue;
    const size_t equals = word.find('=');
    if (equals == reader.name().size()) {
      if (auto refused = refused_value(*reader.option(), word.substr(equals + 1))) return refused;
    }
    const CLI::Option* option = reader.option();
    asks = asks || option == command.get_help_ptr() || option == command.get_help_all_ptr() ||
           option == command.get_version_ptr();
  }
  if (!asks && !command_names(reader.command()).empty())
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
  const std::string_view otherwise = command.get_name() == kShortForm
                                         ? "its prompt goes behind -p, and another model to headrace generate"
                                         : "a text of several words goes in quotes";
  return fmt::format("'{}' is more than {} takes; {}", fmt::join(command.remaining(), " "), command.get_name(),
                     otherwise);
}

}  // namespace headrace::app
