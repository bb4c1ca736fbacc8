// Lines that people type into a chat: messages, and commands that begin with a slash.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::app {

struct ChatCommand {
  enum class Kind : uint8_t { kClear, kSystem, kSave, kLoad, kSet, kStats, kHelp, kExit, kUnknown } kind;
  std::string word;  // as it was typed: "/bye"
  std::string rest;  // behind it, without white space around it
};

// Nothing if `line` is a message. A command is a slash and letters ("/usr/bin" is none); words of other chat programs
// count.
std::optional<ChatCommand> chat_command(std::string_view line);
// One sentence about a command of kind kUnknown.
std::string unknown_command(const ChatCommand& command);
std::string chat_help();

// Joins lines to messages. A line that ends with a backslash goes on in the next one; lines between """ and """ are one
// message. Not thread-safe.
class MessageLines {
 public:
  // Returns the message that `line`, without its line feed, completes; nothing while it goes on.
  std::optional<std::string> add(std::string_view line);
  bool is_open() const { return !lines_.empty() || is_quoted_; }
  std::string take();  // what has come of an open message

 private:
  std::optional<std::string> add_quoted(std::string_view line);

  std::string lines_;  // with their line feeds
  bool is_quoted_ = false;
};

}  // namespace headrace::app
