#include "line_history.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "environment.h"
#include "headrace/core/error.h"
#include "input.h"
#include "output.h"
#include "prompt.h"

namespace headrace::app {
namespace {

namespace fs = std::filesystem;

// One line of the file.
std::string escaped_line(std::string_view line) {
  std::string out;
  for (const char c : line) {
    if (c == '\\' || c == '\n') out += '\\';
    out += c == '\n' ? 'n' : c;
  }
  return out + "\n";
}

void write_lines(const fs::path& file, const std::vector<std::string>& lines, int mode) {
  const int out = open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0600);
  if (out < 0) return;
  std::string text;
  for (const std::string& line : lines) text += escaped_line(line);
  write_all(out, text);
  close(out);
}

std::vector<std::string> read_lines(const fs::path& file) {
  std::vector<std::string> lines;
  std::string text;
  try {
    text = read_text(file.string());
  } catch (const Error&) {
    return lines;  // there is none yet
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(unescaped(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

LineHistory::LineHistory(fs::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  std::error_code ignored;  // a home that cannot be written: add() fails, too
  fs::create_directories(file_.parent_path(), ignored);
  lines_ = read_lines(file_);
  if (lines_.size() <= kMost) return;
  const bool rewrites = lines_.size() > 2 * kMost;
  lines_.erase(lines_.begin(), lines_.end() - static_cast<ptrdiff_t>(kMost));
  if (rewrites) write_lines(file_, lines_, O_TRUNC);
}

void LineHistory::add(const std::string& line) {
  if (line.empty() || (!lines_.empty() && lines_.back() == line)) return;
  lines_.push_back(line);
  if (!file_.empty()) write_lines(file_, {line}, O_APPEND);
}

fs::path history_file() {
  const std::string_view state = variable("XDG_STATE_HOME"), home = variable("HOME");
  if (state.starts_with('/')) return fs::path(state) / "headrace/history";  // others are to be ignored, says XDG
  return home.empty() ? fs::path() : fs::path(home) / ".local/state/headrace/history";
}

}  // namespace headrace::app
