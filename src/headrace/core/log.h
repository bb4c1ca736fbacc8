// Messages for the program around the library: the library never prints.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

namespace headrace {

enum class LogLevel { kDebug, kInfo, kWarning };

// One sentence without a line end. Called on the thread that met the event; an empty function drops messages. What a
// caller must act on is an Error and not a message.
using LogCallback = std::function<void(LogLevel, std::string_view)>;

// Called while something long runs: what is done, and how far (done of total bytes).
using ProgressCallback = std::function<void(std::string_view what, int64_t done, int64_t total)>;

}  // namespace headrace
