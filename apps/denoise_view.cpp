#include "denoise_view.h"

#include <fmt/format.h>
#include <wchar.h>

#include <algorithm>
#include <vector>

namespace headrace::app {
namespace {

constexpr int kTabStop = 8;
constexpr std::string_view kMask = "░", kNewline = "↵", kEnd = "∎", kUnknown = "·";

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 1;
};

// The code point at the beginning of `text`; U+FFFD for a byte that begins none.
CodePoint first_of(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t bytes = byte(0) < 0x80 ? 1 : byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : byte(0) >= 0xc0 ? 2 : 0;
  if (bytes == 0 || bytes > text.size()) return {0xfffd, 1};
  if (bytes == 1) return {byte(0), 1};
  char32_t value = byte(0) & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return {0xfffd, 1};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  return {value, bytes};
}

int cells_of(char32_t code_point) { return std::max(0, wcwidth(static_cast<wchar_t>(code_point))); }

// Returns true for characters that would move the cursor or change the terminal. All but '\n' and '\t' are shown as
// marks.
bool is_control(char32_t c) { return c < 0x20 || (c >= 0x7f && c < 0xa0); }

// A token's bytes on one line: they may begin or end inside a character.
std::string one_line(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const CodePoint c = first_of(bytes);
    if (c.value == '\n') {
      out += kNewline;
    } else if (c.value == 0xfffd || is_control(c.value)) {
      out += kUnknown;
    } else {
      out += bytes.substr(0, c.bytes);
    }
    bytes.remove_prefix(c.bytes);
  }
  return out;
}

// Red for a guess, yellow, green, and plain for what is nearly certain.
std::string_view colour_of(float confidence) {
  if (confidence < 0.5f) return "\x1b[31m";
  if (confidence < 0.8f) return "\x1b[33m";
  return confidence < 0.95f ? "\x1b[32m" : "\x1b[1m";
}

}  // namespace

int cells_of(std::string_view text) {
  int cells = 0;
  while (!text.empty()) {
    const CodePoint c = first_of(text);
    cells += cells_of(c.value);
    text.remove_prefix(c.bytes);
  }
  return cells;
}

std::string DenoiseView::drawn(const std::optional<StepReport::Token>& token, int& cells) const {
  if (!token) {
    ++cells;
    return colours_ == Colours::kYes ? fmt::format("\x1b[2m{}\x1b[0m", kMask) : std::string(kMask);
  }
  const std::string text =
      tokenizer_.is_special(token->id) ? std::string(kEnd) : one_line(tokenizer_.bytes_of(token->id));
  cells += cells_of(text);
  return colours_ == Colours::kYes ? fmt::format("{}{}\x1b[0m", colour_of(token->confidence), text) : text;
}

std::string DenoiseView::next_drawn() {
  const CodePoint c = first_of(fresh_);
  std::string text = fresh_.substr(0, c.bytes);
  fresh_.erase(0, c.bytes);
  if (c.value == '\n') {
    column_ = 0;
    line_.clear();
    return text;
  }
  if (c.value == '\t') {
    const int from = column_ % columns_;
    text = std::string(static_cast<size_t>(std::min(kTabStop - from % kTabStop, columns_ - from)), ' ');
  } else if (is_control(c.value)) {
    text = kUnknown;
  }
  advance(cells_of(text));
  line_ += text;
  return text;
}

void DenoiseView::advance(int cells) {
  if (column_ + cells > columns_) column_ = 0;
  column_ += cells;
}

void DenoiseView::resize(TerminalSize terminal) {
  rows_ = terminal.rows;
  if (terminal.columns == columns_) return;
  columns_ = terminal.columns;
  if (reflow_ == Reflow::kNo) {
    column_ = std::min(column_, columns_);
    return;
  }
  column_ = 0;
  for (std::string_view line = line_; !line.empty();) {
    const CodePoint c = first_of(line);
    advance(cells_of(c.value));
    line.remove_prefix(c.bytes);
  }
  rows_below_ = pending_cells_ > 0 ? (column_ + pending_cells_ - 1) / columns_ : 0;
  if (column_ == columns_ && pending_cells_ > 0) {  // what is pending begins on a row of its own now
    --rows_below_;
    column_ = 0;
    broke_line_ = true;
  }
}

std::string DenoiseView::erase_pending() const {
  if (pending_cells_ == 0) return "";
  std::string out = rows_below_ > 0 ? fmt::format("\x1b[{}A", rows_below_) : "";
  out += "\r";
  if (column_ > 0) out += fmt::format("\x1b[{}C", column_);
  return out + "\x1b[J";
}

// Back to where the final text ends, what is new of it, then what is pending.
std::string DenoiseView::redraw(const std::string& pending, int pending_cells) {
  std::string out = erase_pending();
  if (broke_line_ && !fresh_.empty()) {
    if (fresh_[0] == '\n') fresh_.erase(0, 1);  // the screen is on that line already
    broke_line_ = false;
  }
  while (!fresh_.empty()) out += next_drawn();
  if (column_ == columns_ &&
      pending_cells > 0) {  // so that what is pending begins on a line of its own, wherever the cursor waits
    out += "\r\n";
    column_ = 0;
    line_.clear();
    broke_line_ = true;
  }
  out += pending;
  pending_cells_ = pending_cells;
  // A line that is exactly full keeps the cursor on its last cell.
  rows_below_ = pending_cells > 0 ? (column_ + pending_cells - 1) / columns_ : 0;
  return out;
}

std::string DenoiseView::show(const StepReport& report) {
  std::string pending;
  int cells = 0;
  const int most = std::max(1, rows_ - 1) * columns_;
  for (const auto& token : report.pending) {
    int more = 0;
    const std::string text = drawn(token, more);
    if (cells + more > most) break;
    pending += text;
    cells += more;
  }
  return redraw(pending, cells);
}

std::string DenoiseView::finish() { return redraw("", 0); }

}  // namespace headrace::app
