#include "screen.h"

#include <unistd.h>

#include <clocale>
#include <string_view>

#include "environment.h"
#include "headrace/core/error.h"
#include "interrupt.h"
#include "load_progress.h"
#include "terminal.h"
#include "trace_file.h"

namespace headrace::app {
namespace {

TerminalSize window() { return terminal_size(STDOUT_FILENO).value_or(TerminalSize{}); }

// xterm and GNU screen keep or cut the rows of a window that is resized; tmux, which calls itself screen too, does not.
DenoiseView::Reflow reflow_of(std::string_view term) {
  const bool screen = term.starts_with("screen") && variable("TMUX").empty();
  const bool keeps_rows = screen || !variable("XTERM_VERSION").empty() || term == "linux";
  return keeps_rows ? DenoiseView::Reflow::kNo : DenoiseView::Reflow::kYes;
}

}  // namespace

Screen::Screen(const GenerateFlags& flags, const LLM& llm)
    : tokenizer_(llm.tokenizer()), on_terminal_(isatty(STDOUT_FILENO) != 0), is_silent_(flags.json) {
  const std::string_view term = variable("TERM");
  moves_ = on_terminal_ && !is_silent_ && !term.empty() && term != "dumb";
  has_colours_ = moves_ && variable("NO_COLOR").empty();
  if (moves_ && llm.config().strategy != "autoregressive") {
    // For the widths of characters; no other thread prints or classifies any.
    std::setlocale(LC_CTYPE, "C.UTF-8");  // NOLINT(concurrency-mt-unsafe)
    const auto colours = has_colours_ ? DenoiseView::Colours::kYes : DenoiseView::Colours::kNo;
    view_.emplace(tokenizer_, window(), colours, reflow_of(term));
  }
  if (!flags.decoding.trace.empty()) trace_.emplace(flags.decoding.trace);
}

void Screen::open() {
  const std::string first = std::exchange(opening_, {});
  if (!first.empty()) text(first);
}

std::string Screen::dim(std::string_view text) const {
  return has_colours_ ? str("\x1b[2m", text, "\x1b[0m") : std::string(text);
}

void Screen::dim_text(std::string_view piece) {
  if (view_ || !has_colours_ || piece.empty()) return text(piece);
  wipe_status();
  write(dim(without_controls(piece, Keep::kLinesAndTabs)));
}

void Screen::wipe_status() {
  if (std::exchange(has_status_, false)) write(LoadProgress::kWipe);
}

void Screen::show_status(std::string_view line) {
  if (!moves_) return;
  if (view_ && !has_status_) write(view_->finish());
  wipe_status();
  write(dim(without_controls(line)));
  has_status_ = true;
}

void Screen::end_status(std::string_view line) {
  wipe_status();
  if (on_terminal_ && !is_silent_) write(dim(without_controls(line)) + "\n");
}

void Screen::text(std::string_view piece) {
  open();
  if (!piece.empty()) wipe_status();
  if (view_) {
    view_->add(piece);
  } else if (!is_silent_) {
    write(on_terminal_ ? without_controls(piece, Keep::kLinesAndTabs) : piece);
  }
}

void Screen::finish() {
  open();
  wipe_status();
  if (!view_) return;
  view_->resize(window());
  write(view_->finish());
}

LLM::OnStep Screen::on_step() {
  if (!view_ && !trace_) return {};
  return [this](const StepReport& report) {
    open();
    if (view_ && !has_status_) {
      view_->resize(window());
      write(view_->show(report));
    }
    if (trace_) trace_->write(trace_line(report, tokenizer_));
  };
}

void Screen::write(std::string_view bytes) {
  if (view_) finish_when_interrupted();  // a block that is being denoised is on the screen, and must be ended
  reader_gone_ = reader_gone_ || !write_out(bytes);
}

}  // namespace headrace::app
