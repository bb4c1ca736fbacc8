#include "chat_loop.h"

#include <fmt/format.h>

#include <string_view>

#include "chat_command.h"
#include "environment.h"
#include "exit_status.h"
#include "headrace/core/printable.h"
#include "interrupt.h"
#include "line_editor.h"
#include "output.h"

namespace headrace::app {
namespace {

using CommandKind = ChatCommand::Kind;

void say(std::string_view sentence) { write_err(without_controls(sentence, Keep::kLinesAndTabs) + "\n"); }

// `~` at the beginning of a path is the user's directory.
std::string path_of(const std::string& typed) {
  return typed.starts_with("~/") ? std::string(variable("HOME")) + typed.substr(1) : typed;
}

// The first word of `text`, which loses it.
std::string first_word(std::string& text) {
  const size_t end = std::min(text.find(' '), text.size());
  std::string word = text.substr(0, end);
  text.erase(0, std::min(text.find_first_not_of(' ', end), text.size()));
  return word;
}

class Chat {
 public:
  explicit Chat(ChatSession& session) : session_(session), editor_(LineHistory(history_file())) {}

  int run() {
    while (!ended_) {
      const LineEditor::Line line = editor_.read(lines_.is_open() ? "... " : ">>> ");
      if (asked_to_end()) return kInterrupted;
      if (line.end == LineEditor::Line::End::kTyped) {
        interrupted_before_ = false;
        guarded_take(line.text);
      } else {
        close(line);
      }
    }
    return asked_to_end() ? kInterrupted : 0;
  }

 private:
  // Ctrl-C gives up what was typed; on an empty line, it ends the chat the second time.
  void close(const LineEditor::Line& line) {
    const bool empty = line.text.empty() && !lines_.is_open();
    lines_.take();
    ended_ = line.end == LineEditor::Line::End::kClosed || (empty && interrupted_before_);
    interrupted_before_ = empty;
    if (empty && !ended_) say("(Ctrl-C again ends the chat)");
  }

  void guarded_take(const std::string& line) {
    try {
      take(line);
    } catch (const Error& e) {
      const bool final = e.code() == ErrorCode::kCuda || e.code() == ErrorCode::kInternal;
      if (final) throw;
      say(e.what());
    }
  }

  void take(const std::string& line) {
    const auto command = lines_.is_open() ? std::nullopt : chat_command(line);
    if (command) return obey(*command);
    const auto message = lines_.add(line);
    if (message && message->find_first_not_of(" \t\n") != std::string::npos) answer(*message);
  }

  void answer(const std::string& message) {
    const Turn& turn = session_.ask(message);
    if (session_.reader_gone() || asked_to_end()) ended_ = true;
    take_interrupt();
    write_out(session_.conversation.messages.empty() || !session_.conversation.messages.back().content.ends_with('\n')
                  ? "\n\n"
                  : "\n");
    if (turn.completion.finish_reason == FinishReason::kContext) {
      say(fmt::format(
          "the context of {} tokens is full: /clear forgets the conversation, -c N makes the context larger",
          session_.llm().config().max_context_len));
    }
  }

  void obey(const ChatCommand& command) {
    switch (command.kind) {
      case CommandKind::kClear: return session_.clear();
      case CommandKind::kSystem: return set_system(command.rest);
      case CommandKind::kSave: return save(command.rest);
      case CommandKind::kLoad: return load(command.rest);
      case CommandKind::kSet: return set_value(command.rest);
      case CommandKind::kStats: return say_lines(session_.stats_text());
      case CommandKind::kHelp: return say_lines(chat_help());
      case CommandKind::kExit: ended_ = true; return;
      case CommandKind::kUnknown: return say(unknown_command(command));
    }
  }

  static void say_lines(const std::string& lines) { write_out(without_controls(lines, Keep::kLinesAndTabs)); }

  void set_system(const std::string& text) {
    if (!text.empty()) return session_.set_system(text);
    const auto& messages = session_.conversation.messages;
    const bool has = !messages.empty() && messages.front().role == "system";
    say(has ? messages.front().content : "there is no system message; /system TEXT sets one");
  }

  void save(const std::string& file) {
    HR_REQUIRE(!file.empty(), ErrorCode::kInvalidArgument, "/save needs a file: /save chat.json");
    write_conversation(path_of(file), session_.conversation, session_.settings);
    say(fmt::format("{} messages are in {}", session_.conversation.messages.size(), path_of(file)));
  }

  void load(const std::string& file) {
    HR_REQUIRE(!file.empty(), ErrorCode::kInvalidArgument, "/load needs a file: /load chat.json");
    Conversation loaded = read_conversation(path_of(file), session_.settings);
    const std::string other = loaded.model.empty() || loaded.model == session_.conversation.model
                                  ? ""
                                  : fmt::format("; they were with {}", printable(loaded.model));
    session_.conversation.messages = std::move(loaded.messages);
    say(fmt::format("{} messages{}", session_.conversation.messages.size(), other));
  }

  // Ollama's "/set parameter NAME VALUE", "/set system TEXT", "/set think" and "/set nothink" count.
  void set_value(std::string rest) {
    if (rest.empty()) {
      const auto schedule = session_.settings.sampling.params.decoding.schedule;
      return say_lines(settings_text(session_.settings, session_.llm().default_params(schedule)));
    }
    std::string name = first_word(rest);
    if (name == "parameter") name = first_word(rest);
    if (name == "system") return set_system(rest);
    if (name == "think" || name == "nothink") {
      rest = name == "think" ? "true" : "false";
      name = "enable_thinking";
    }
    set(session_.settings, name, rest);
  }

  ChatSession& session_;
  LineEditor editor_;
  MessageLines lines_;
  bool ended_ = false, interrupted_before_ = false;
};

}  // namespace

int chat(ChatSession& session, const std::string& size) {
  // People press it twice, and an answer may take a moment to end.
  constexpr int kMostInterrupts = 4;
  finish_when_interrupted(kMostInterrupts);
  const Device device = session.llm().device();
  write_err(fmt::format("{}, {}, {}; /help\n", without_controls(session.conversation.model), size,
                        device.type == DeviceType::kCPU ? "CPU" : to_string(device)));
  return Chat(session).run();
}

}  // namespace headrace::app
