#include "chat_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "suggest.h"

namespace headrace::app {
namespace {

using CommandKind = ChatCommand::Kind;

struct Name {
  std::string_view word;
  CommandKind kind;
};

// The first of a kind is the one that /help names; others are of llama.cpp, Ollama and their kin.
constexpr Name kChatNames[] = {
    {"clear", CommandKind::kClear},   {"new", CommandKind::kClear},   {"reset", CommandKind::kClear},
    {"system", CommandKind::kSystem}, {"save", CommandKind::kSave},   {"load", CommandKind::kLoad},
    {"set", CommandKind::kSet},       {"stats", CommandKind::kStats}, {"status", CommandKind::kStats},
    {"show", CommandKind::kStats},    {"help", CommandKind::kHelp},   {"?", CommandKind::kHelp},
    {"exit", CommandKind::kExit},     {"bye", CommandKind::kExit},    {"quit", CommandKind::kExit},
    {"q", CommandKind::kExit}};

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool is_name(std::string_view word) {
  return word == "?" ||
         (!word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isalpha(c) != 0 || c == '_'; }));
}

}  // namespace

std::optional<ChatCommand> chat_command(std::string_view line) {
  if (!line.starts_with('/')) return std::nullopt;
  const std::string_view word = line.substr(1, line.find_first_of(kSpace) - 1);
  if (!is_name(word)) return std::nullopt;
  const Name* found = std::ranges::find(kChatNames, word, &Name::word);
  return ChatCommand{.kind = found == std::end(kChatNames) ? CommandKind::kUnknown : found->kind,
                     .word = fmt::format("/{}", word),
                     .rest = std::string(trimmed(line.substr(1 + word.size())))};
}

std::string unknown_command(const ChatCommand& command) {
  std::vector<std::string> words;
  for (const Name& name : kChatNames) words.push_back(fmt::format("/{}", name.word));
  const auto near = nearest(command.word, words);
  return fmt::format("there is no command {}{}; /help lists them, and a message may begin with a space", command.word,
                     near ? fmt::format(", did you mean {}?", *near) : "");
}

std::string chat_help() {
  return "/clear             forget the conversation\n"
         "/system [TEXT]     say how the model is to answer; without TEXT: show it\n"
         "/save FILE         write the conversation, as JSON\n"
         "/load FILE         go on with one that was written\n"
         "/set [NAME VALUE]  temperature, max_tokens, thinking, ...; alone: show all of them\n"
         "/stats             tokens, times, and what the prefix cache had\n"
         "/exit              end; Ctrl-D does, too\n"
         "Ctrl-C ends an answer. A \\ at a line's end, or \"\"\" around lines, makes a message of several lines.\n";
}

std::optional<std::string> MessageLines::add(std::string_view line) {
  if (!is_quoted_ && lines_.empty() && line.starts_with("\"\"\"")) {
    is_quoted_ = true;
    line.remove_prefix(3);
    if (line.empty()) return std::nullopt;
  }
  if (is_quoted_) return add_quoted(line);
  if (line.ends_with('\\')) {
    lines_ += line.substr(0, line.size() - 1);
    lines_ += '\n';
    return std::nullopt;
  }
  lines_ += line;
  return take();
}

std::optional<std::string> MessageLines::add_quoted(std::string_view line) {
  const std::string_view end = line.substr(0, line.find_last_not_of(kSpace) + 1);
  if (!end.ends_with("\"\"\"")) {
    lines_ += line;
    lines_ += '\n';
    return std::nullopt;
  }
  lines_ += end.substr(0, end.size() - 3);
  if (end.size() == 3 && lines_.ends_with('\n')) lines_.pop_back();
  return take();
}

std::string MessageLines::take() {
  is_quoted_ = false;
  return std::exchange(lines_, {});
}

}  // namespace headrace::app
