// Exit statuses of the program.
#pragma once
#include <functional>

namespace headrace::app {

// As docs/command_line.md lists them; 0 is success.
constexpr int kSomeFailed = 1;  // lines of a batch
constexpr int kUsage = 2, kModelFiles = 3, kMemory = 4, kPortInUse = 5, kDevice = 6, kBug = 70;
constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells count it

// Runs `body` and returns its status. An exception becomes one sentence on standard error and its own status.
int guarded(const std::function<int()>& body);

}  // namespace headrace::app
