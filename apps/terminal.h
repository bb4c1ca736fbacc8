// The window that the program writes to.
#pragma once
#include <optional>
#include <string_view>

namespace headrace::app {

struct TerminalSize {
  int columns = 80, rows = 24;  // each at least 1
};

// The window of the terminal behind file descriptor `file`, asked anew each time: people resize it. A terminal that
// does not say its columns or rows has 80 and 24. Nothing where `file` is no terminal.
std::optional<TerminalSize> terminal_size(int file);

// Columns for a help text: those of `window`, else the number in `columns_variable` ($COLUMNS), else 80. At least 40,
// for two columns of text, and at most 100, as longer lines are hard to read.
int help_columns(std::optional<TerminalSize> window, std::string_view columns_variable);

}  // namespace headrace::app
