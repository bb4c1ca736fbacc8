// Writes the library's messages.
#pragma once
#include <string>

#include "headrace/core/log.h"

namespace headrace::app {

// Lines "headrace: warning: ..." on standard error, of `level` and above: "warning", "info"; "off" gives an empty
// callback. Callable from any thread.
LogCallback log_to_stderr(const std::string& level);

enum class LogFormat : unsigned char { kText, kJson };
// As above, for a program that runs for long: each line has the time; kJson: one object {"time": ..., "level": ...,
// "message": ...} a line.
LogCallback timed_log(const std::string& level, LogFormat format);

}  // namespace headrace::app
