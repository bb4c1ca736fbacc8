#include "screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <string_view>

#include "environment.h"
#include "interrupt.h"
#include "trace_file.h"

namespace headrace::app {
namespace {

DenoiseView::Size terminal_size() {
  winsize size{};
  DenoiseView::Size known;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return known;
  if (size.ws_col != 0) known.columns = size.ws_col;  // 0: nobody said
  if (size.ws_row != 0) known.rows = size.ws_row;
  return known;
}

}  // namespace

Screen::Screen(const GenerateFlags& flags, const LLM& llm) : tokenizer_(llm.tokenizer()) {
  const std::string_view term = variable("TERM");
  const bool moves = isatty(STDOUT_FILENO) != 0 && !term.empty() && term != "dumb";
  if (moves && !flags.json && llm.config().strategy != "autoregressive") {
    // For the widths of characters; no other thread prints or classifies any.
    std::setlocale(LC_CTYPE, "C.UTF-8");  // NOLINT(concurrency-mt-unsafe)
    const auto colours = variable("NO_COLOR").empty() ? DenoiseView::Colours::kYes : DenoiseView::Colours::kNo;
    view_.emplace(tokenizer_, terminal_size(), colours);
  }
  if (!flags.decoding.trace.empty()) trace_.emplace(flags.decoding.trace);
}

void Screen::text(std::string_view piece) {
  if (view_) {
    view_->add(piece);
  } else {
    write(piece);
  }
}

void Screen::finish() {
  if (view_) write(view_->finish());
}

LLM::OnStep Screen::on_step() {
  if (!view_ && !trace_) return {};
  return [this](const StepReport& report) {
    if (view_) write(view_->show(report));
    if (trace_) trace_->write(trace_line(report, tokenizer_));
  };
}

void Screen::write(std::string_view bytes) {
  if (view_) finish_when_interrupted();  // a block that is being denoised is on the screen, and must be ended
  reader_gone_ = reader_gone_ || !write_out(bytes);
}

}  // namespace headrace::app
