#include "suggest.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>

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
  const std::optional<std::string> guess = nearest(word, candidates);
  std::string text = fmt::format("unknown {} '{}' of {}", kind, word, of);
  if (guess) return text + fmt::format("; did you mean '{}'?", *guess);
  return text + fmt::format("; '{} --help' lists what there is", of);
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

// The option of a word that begins with '-', without what stands behind '=' or sticks to a short name.
std::string option_word(const std::string& word) {
  return word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const auto continues = [word](const std::string& name) { return word.size() > 3 && name.starts_with(word); };
  const auto longer = std::ranges::find_if(candidates, continues);
  if (longer != candidates.end()) return *longer;
  const auto by_distance = [word](const std::string& a, const std::string& b) {
    return distance(word, a) < distance(word, b);
  };
  const auto best = std::ranges::min_element(candidates, by_distance);
  if (best == candidates.end() || distance(word, *best) > std::max<size_t>(2, word.size() / 3)) return std::nullopt;
  return *best;
}

std::optional<std::string> unknown_argument(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* current = &app;
  std::string path = "headrace";
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::vector<std::string> commands = command_names(*current);
    if (word == "--") return std::nullopt;
    if (word.size() > 1 && word.starts_with('-')) {
      const std::string name = option_word(word);
      const std::vector<std::string> names = option_names(*current);
      if (std::ranges::find(names, name) == names.end()) return sentence("option", name, path, names);
      const bool takes_value = current->get_option(name)->get_items_expected_max() > 0;
      if (takes_value && word == name) ++i;  // the next word is its value
    } else if (!commands.empty()) {
      if (std::ranges::find(commands, word) == commands.end()) return sentence("command", word, path, commands);
      current = current->get_subcommand(word);
      path += " " + word;
    }
  }
  if (!command_names(*current).empty())
    return fmt::format("{} needs a command; '{} --help' lists what there is", path, path);
  return std::nullopt;
}

}  // namespace headrace::app
