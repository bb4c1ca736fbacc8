#include "suggest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>

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

// What users of llama.cpp and vLLM type, and what to do here; options that mean the same have a second name instead.
std::optional<std::string_view> known_elsewhere(std::string_view word) {
  constexpr std::string_view kOnGpu = "--device cuda runs all layers on the GPU";
  constexpr std::string_view kOneGpu = "a model runs on one GPU, --device cuda:N";
  constexpr std::string_view kNoServer = "there is no server yet, and a command runs one request";
  constexpr std::string_view kNoChat = "no chat template is applied yet; write the turns out, with --special-tokens";
  constexpr std::string_view kNoDownload =
      "headrace downloads no models; give a directory, or a name in Hugging Face's cache";
  constexpr std::string_view kCacheType = "--kv-cache-dtype is that of keys and of values";
  constexpr std::string_view kAttention = "--attention-backend chooses how attention runs";
  static const std::map<std::string_view, std::string_view> kWords = {
      {"-ngl", kOnGpu},
      {"--gpu-layers", kOnGpu},
      {"--n-gpu-layers", kOnGpu},
      {"-tp", kOneGpu},
      {"--tensor-parallel-size", kOneGpu},
      {"-np", kNoServer},
      {"--parallel", kNoServer},
      {"--max-num-seqs", kNoServer},
      {"--host", kNoServer},
      {"--port", kNoServer},
      {"serve", kNoServer},
      {"-cnv", kNoChat},
      {"--conversation", kNoChat},
      {"chat", kNoChat},
      {"-hf", kNoDownload},
      {"--hf-repo", kNoDownload},
      {"-ctk", kCacheType},
      {"-ctv", kCacheType},
      {"--cache-type-k", kCacheType},
      {"--cache-type-v", kCacheType},
      {"-fa", kAttention},
      {"--flash-attn", kAttention},
      {"--gpu-memory-utilization", "keys and values take what a context of -c tokens needs"},
      {"--lora", "--adapter takes the directory of a LoRA"},
      {"--enforce-eager", "--no-graphs decodes without CUDA graphs"},
  };
  const auto found = kWords.find(word);
  return found == kWords.end() ? std::nullopt : std::optional(found->second);
}

std::string sentence(std::string_view kind, std::string_view word, std::string_view of,
                     const std::vector<std::string>& candidates) {
  std::string text = fmt::format("unknown {} '{}' of {}", kind, word, of);
  if (const auto here = known_elsewhere(word)) return text + fmt::format(": {}", *here);
  const std::optional<std::string> guess = nearest(word, candidates);
  if (guess) return text + fmt::format("; did you mean '{}'?", *guess);
  return text + fmt::format("; '{} --help' lists what there is", of);
}

// The innermost command of the line that was parsed.
const CLI::App& parsed_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
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

// The option of a word that begins with '-', without what stands behind '=' or sticks to a short name: -ngl is not -n
// with "gl", though.
std::string option_word(const std::string& word) {
  if (known_elsewhere(word)) return word;
  return word.starts_with("--") ? word.substr(0, word.find('=')) : word.substr(0, 2);
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() < 3) return std::nullopt;  // every short option is near to every other
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
  bool asks = false;  // for help or the version, which needs no command
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::vector<std::string> commands = command_names(*current);
    if (word == "--") return std::nullopt;
    if (word.size() > 1 && word.starts_with('-')) {
      const std::string name = option_word(word);
      const std::vector<std::string> names = option_names(*current);
      if (std::ranges::find(names, name) == names.end()) return sentence("option", name, path, names);
      const CLI::Option* option = current->get_option(name);
      asks = asks || option == current->get_help_ptr() || option == current->get_version_ptr();
      const bool takes_value = option->get_items_expected_max() > 0;
      if (takes_value && word == name) ++i;  // the next word is its value
    } else if (!commands.empty()) {
      if (std::ranges::find(commands, word) == commands.end()) return sentence("command", word, path, commands);
      current = current->get_subcommand(word);
      path += " " + word;
    }
  }
  if (!asks && !command_names(*current).empty())
    return fmt::format("{} needs a command; '{} --help' lists what there is", path, path);
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
  return fmt::format("'{}' is more than {} takes; a text of several words goes in quotes",
                     fmt::join(command.remaining(), " "), command.get_name());
}

}  // namespace headrace::app
