// A chat in a terminal.
#pragma once
#include <string>

#include "chat_session.h"

namespace headrace::app {

// Reads messages and commands from standard input, which is a terminal, until the user ends it. `size`: of the model,
// for the first line. Returns the process's exit status. Errors: of a device that fails.
int chat(ChatSession& session, const std::string& size);

}  // namespace headrace::app
