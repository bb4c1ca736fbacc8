#include "answer_view.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "terminal.h"

namespace headrace::app {
namespace {

constexpr double kBetweenDrawings = 0.1, kPatience = 1;  // seconds

int columns() { return terminal_size(STDOUT_FILENO).value_or(TerminalSize{}).columns; }

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u; }

// Returns the end of `text` in one line of at most `cells` cells, without a word that is cut.
std::string last_words(std::string_view text, int cells) {
  constexpr size_t kMost = 1000;  // bytes: more than a line has
  if (text.size() > kMost) text.remove_prefix(text.size() - kMost);
  std::string line;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!space || (!line.empty() && line.back() != ' ')) line += space ? ' ' : c;
  }
  line = without_controls(line);
  size_t begin = 0;
  while (begin < line.size() &&
         (cells_of(std::string_view(line).substr(begin)) > cells || !begins_character(line[begin]))) {
    ++begin;
  }
  if (begin > 0 && line[begin - 1] != ' ') begin = std::min(line.find(' ', begin), line.size() - 1) + 1;
  return line.substr(begin);
}

}  // namespace

std::string thinking_line(double seconds, std::string_view thought, int columns) {
  const std::string head = fmt::format("thinking... {:.1f} s", seconds);
  const int left = columns - static_cast<int>(head.size()) - 3;  // two spaces, and the last column stays free
  const std::string words = left > 0 ? last_words(thought, left) : "";
  return words.empty() ? head : head + "  " + words;
}

void AnswerView::wait(size_t prompt_tokens) {
  if (seconds_since(start_) < kPatience || seconds_since(drawn_) < kBetweenDrawings) return;
  drawn_ = Clock::now();
  screen_.show_status(fmt::format("reading {} tokens... {:.1f} s", prompt_tokens, seconds_since(start_)));
}

void AnswerView::text(std::string_view piece) {
  if (!std::exchange(has_begun_, true)) start_ = Clock::now();
  add(stream_.push(piece));
}

void AnswerView::finish() {
  add(stream_.finish());
  if (has_thought_) end_thought();
  screen_.finish();
}

void AnswerView::add(const ReasoningStream::Parts& parts) {
  parts_.reasoning += parts.reasoning;
  parts_.content += parts.content;
  if (stream_.is_thinking() || !parts.reasoning.empty()) add_thought(parts.reasoning);
  if (parts.content.empty()) return;
  if (has_thought_) end_thought();
  screen_.text(parts.content);
}

void AnswerView::add_thought(const std::string& text) {
  has_thought_ = true;
  if (thinking_ == Thinking::kShow) return screen_.dim_text(text);
  if (seconds_since(drawn_) < kBetweenDrawings) return;
  drawn_ = Clock::now();
  screen_.show_status(thinking_line(seconds_since(start_), parts_.reasoning, columns()));
}

void AnswerView::end_thought() {
  has_thought_ = false;
  if (parts_.reasoning.empty()) return;
  if (thinking_ == Thinking::kHide) {
    screen_.end_status(fmt::format("thought for {:.1f} s", seconds_since(start_)));
  } else {
    screen_.dim_text("\n\n");
  }
}

}  // namespace headrace::app
