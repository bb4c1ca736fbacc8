#include "help_formatter.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <vector>

#include "help_page.h"
#include "option_values.h"

namespace headrace::app {
namespace {

// Returns the column where descriptions begin: a third of a line, at most where it is in 80 columns.
size_t indent_of(size_t columns) { return std::min<size_t>(26, columns / 3); }

// `text` broken between words, its first line beginning at column `at` and the others at `indent`.
std::string wrapped(const std::string& text, size_t at, size_t indent, size_t columns) {
  std::istringstream words(text);
  std::string out;
  bool line_begins = true;
  for (std::string word; words >> word;) {
    if (!line_begins && at + 1 + word.size() > columns) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
      line_begins = true;
    }
    if (!line_begins) out += " ", ++at;
    out += word;
    at += word.size();
    line_begins = false;
  }
  return out;
}

// Returns the placeholder of the value: "N", "FILE". The error message for a value out of range states the range.
std::string placeholder(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  if (!choices_of(option).empty()) return "CHOICE";
  const std::string type = option.get_type_name();
  std::string kind = type.substr(0, type.find(':'));
  const bool number = kind.starts_with("INT") || kind.starts_with("UINT") || kind.starts_with("FLOAT");
  if (!number) return kind;
  return option.get_delimiter() == '\0' ? "N" : "N,N,...";
}

std::string upper(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

std::string names_of(const CLI::Option& option, HelpLength length) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  if (length == HelpLength::kShort) names.resize(std::min<size_t>(names.size(), 1));
  const size_t short_names = names.size();
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (length == HelpLength::kShort) names.resize(std::min(names.size(), short_names + 1));
  std::string joined = names.empty() ? upper(option.get_name(true)) : fmt::format("{}", fmt::join(names, ", "));
  const std::string value = placeholder(option);
  return names.empty() || value.empty() ? joined : joined + " " + value;
}

std::string description_of(const CLI::Option& option) {
  std::string text = option.get_description();
  const std::string choices = choices_of(option), preset = option.get_default_str();
  const bool listed = text.find(choices.substr(0, choices.find(','))) != std::string::npos;
  if (!choices.empty() && !listed) {
    text += ": ";
    for (const char c : choices) text += c == ',' ? std::string(", ") : std::string(1, c);
  }
  if (!preset.empty() && preset != "{}" && preset != "[]") text += fmt::format(" (default: {})", preset);
  return text;
}

std::string line_of(const CLI::Option& option, HelpLength length, const std::string& text, size_t columns) {
  return two_columns("  " + names_of(option, length), text, columns);
}

std::string positionals(const CLI::App& command) {
  std::string line;
  for (const CLI::Option* option : command.get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    if (option->get_group().empty()) continue;
    const std::string name = upper(option->get_name(true));
    line += option->get_required() ? " " + name : " [" + name + "]";
  }
  return line;
}

// "[MODEL] [PROMPT] [OPTIONS]", or "COMMAND [OPTIONS]".
std::string usage_of(const CLI::App& command, const HelpPage* page) {
  if (page != nullptr && !page->usage.empty()) return std::string(page->usage);
  if (!command.get_subcommands({}).empty()) return "COMMAND [OPTIONS]";
  const std::string words = positionals(command);
  return words.empty() ? "[OPTIONS]" : words.substr(1) + " [OPTIONS]";
}

std::string commands_of(const CLI::App& command, size_t columns) {
  const auto commands = command.get_subcommands({});
  if (commands.empty()) return "";
  std::string out = "\nCommands:\n";
  for (const CLI::App* one : commands) {
    out += two_columns("  " + one->get_name(), one->get_description(), columns);
  }
  return out;
}

bool is_word_option(const CLI::Option* option) { return option->get_lnames().empty() && option->get_snames().empty(); }

// Lists the common options. Headings of groups would double the lines.
std::string common_options(const CLI::App& command, const HelpPage& page, size_t columns) {
  std::string out = "\nOptions:\n";
  for (const CLI::Option* word : command.get_options(is_word_option)) {
    if (!word->get_group().empty()) out += line_of(*word, HelpLength::kShort, description_of(*word), columns);
  }
  for (const auto& [name, brief] : page.common) {
    const CLI::Option* option = command.get_option_no_throw("--" + std::string(name));
    if (option == nullptr) continue;  // a page may say more than a small program has, as those of tests
    out += line_of(*option, HelpLength::kShort, brief.empty() ? description_of(*option) : std::string(brief), columns);
  }
  return out;
}

std::string all_options(const CLI::App& command, size_t columns) {
  std::string out;
  for (const std::string& group : command.get_groups()) {
    if (group.empty()) continue;
    std::string lines;
    for (const CLI::Option* option : command.get_options()) {
      if (option->get_group() == group) lines += line_of(*option, HelpLength::kFull, description_of(*option), columns);
    }
    if (!lines.empty()) out += fmt::format("\n{}:\n{}", group, lines);
  }
  return out;
}

std::string examples_of(const HelpPage* page, size_t columns) {
  if (page == nullptr || page->examples.empty()) return "";
  std::string out = "\nExamples:\n";
  for (const auto& [line, what] : page->examples) {
    out += fmt::format("  {}\n", line);
    if (!what.empty()) out += "      " + wrapped(std::string(what), 6, 6, columns) + "\n";
  }
  return out;
}

}  // namespace

std::string two_columns(const std::string& left, const std::string& right, size_t columns) {
  const size_t indent = indent_of(columns);
  const bool beside = left.size() + 2 <= indent;
  const std::string gap = beside ? std::string(indent - left.size(), ' ') : "\n" + std::string(indent, ' ');
  return right.empty() ? left + "\n" : left + gap + wrapped(right, indent, indent, columns) + "\n";
}

std::string help_of(const CLI::App& command, const std::string& path, HelpLength length, size_t columns) {
  const HelpPage* page = help_page(path);
  const bool brief = length == HelpLength::kShort && page != nullptr && !page->common.empty();
  const std::string what = command.get_description();
  std::string out =
      wrapped(command.get_parent() == nullptr ? what : path + ": " + what, 0, 0, columns) + "\n\n" +
      wrapped("Usage: " + path + " " + usage_of(command, page), 0, 7, columns) + "\n" + commands_of(command, columns) +
      (brief ? common_options(command, *page, columns) : all_options(command, columns)) + examples_of(page, columns);
  if (brief && !page->more.empty()) out += "\n" + wrapped(std::string(page->more), 0, 0, columns) + "\n";
  return out;
}

}  // namespace headrace::app
