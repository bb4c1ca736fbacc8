// Output of generate() while it runs: text as it becomes certain, behind it on a terminal the block that is being
// denoised, and the trace.
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "commands.h"
#include "denoise_view.h"
#include "headrace/llm/llm.h"
#include "output.h"

namespace headrace::app {

class Screen {
 public:
  // With flags.json no text is shown. Error kInvalidArgument when the trace file cannot be written. `llm` is not
  // owned.
  Screen(const GenerateFlags& flags, const LLM& llm);

  // Sets the text in front. It is shown with the first text or step, or at the end, so that a refused prompt shows
  // nothing.
  void opening(std::string text) { opening_ = std::move(text); }
  // Control characters but line feeds and tabs would steer a terminal, which is shown their codes: "\x1b".
  void text(std::string_view piece);
  void dim_text(std::string_view piece);  // what is no part of the answer; plain while blocks are shown
  // Shows a dim line in place of the last one, without what is being denoised, until text comes or end_status() makes
  // it a line of the text. On a terminal alone; a line that is replaced, where the cursor can move.
  void show_status(std::string_view line);
  void end_status(std::string_view line);
  void finish();
  bool reader_gone() const { return reader_gone_; }  // a closed pipe
  LLM::OnStep on_step();                             // empty when nothing watches steps

 private:
  void open();
  void wipe_status();
  std::string dim(std::string_view text) const;
  void write(std::string_view bytes);

  const Tokenizer& tokenizer_;
  std::optional<DenoiseView> view_;
  std::optional<OutputFile> trace_;
  std::string opening_;
  bool on_terminal_ = false, moves_ = false, has_colours_ = false, has_status_ = false, reader_gone_ = false;
  bool is_silent_;
};

}  // namespace headrace::app
