// headrace run: chat with a model.
#pragma once
#include <string>

#include "chat_settings.h"
#include "commands.h"

namespace CLI {
class App;
}

namespace headrace::app {

struct RunFlags {
  GenerateFlags generate;  // `words`: [MODEL] [PROMPT]
  std::string system, template_file;
  ChatSettings settings;  // but for `sampling`
};

void add_run_flags(CLI::App& app, RunFlags& flags);

// Answers PROMPT, or what is piped in, and ends; else chats. Returns the process's exit status.
int run(RunFlags flags);

}  // namespace headrace::app
