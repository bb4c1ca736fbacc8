// Log and progress callbacks. The library never prints.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

namespace headrace {

enum class LogLevel { kDebug, kInfo, kWarning };

// Receives one sentence without a line end, on the thread of the event; an empty function drops messages. Failures that
// a caller must handle are Errors, not messages.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

// Receives the progress of a long operation: its name, and done of total bytes.
using ProgressCallback = std::function<void(std::string_view what, int64_t done, int64_t total)>;

}  // namespace headrace
