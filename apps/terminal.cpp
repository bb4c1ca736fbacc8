#include "terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace headrace::app {

std::optional<TerminalSize> terminal_size(int file) {
  if (isatty(file) == 0) return std::nullopt;
  winsize size{};
  TerminalSize known;
  if (ioctl(file, TIOCGWINSZ, &size) != 0) return known;
  if (size.ws_col != 0) known.columns = size.ws_col;  // 0: nobody said
  if (size.ws_row != 0) known.rows = size.ws_row;
  return known;
}

int help_columns(std::optional<TerminalSize> window, std::string_view columns_variable) {
  constexpr int kFewest = 40, kMost = 100;
  int columns = window.value_or(TerminalSize{}).columns;
  if (!window) {
    int stated = 0;
    const auto [end, error] =
        std::from_chars(columns_variable.data(), columns_variable.data() + columns_variable.size(), stated);
    if (error == std::errc() && stated > 0) columns = stated;
  }
  return std::clamp(columns, kFewest, kMost);
}

}  // namespace headrace::app
