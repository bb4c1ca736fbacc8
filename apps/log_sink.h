// Writes the library's messages.
#pragma once
#include <string>

#include "headrace/core/log.h"

namespace headrace::app {

// Lines "headrace: warning: ..." on standard error, of `level` and above: "warning", "info"; "off" gives an empty
// callback. Callable from any thread.
LogCallback log_to_stderr(const std::string& level);

}  // namespace headrace::app
