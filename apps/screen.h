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
  // Error kInvalidArgument when the trace file cannot be written. `llm` is not owned.
  Screen(const GenerateFlags& flags, const LLM& llm);

  // Sets the text in front. It is shown with the first text or step, or at the end, so that a refused prompt shows
  // nothing.
  void opening(std::string text) { opening_ = std::move(text); }
  // Control characters but line feeds and tabs would steer a terminal, which is shown their codes: "\x1b".
  void text(std::string_view piece);
  void finish();
  bool reader_gone() const { return reader_gone_; }  // a closed pipe
  LLM::OnStep on_step();                             // empty when nothing watches steps

 private:
  void open();
  void write(std::string_view bytes);

  const Tokenizer& tokenizer_;
  std::optional<DenoiseView> view_;
  std::optional<OutputFile> trace_;
  std::string opening_;
  bool on_terminal_ = false, reader_gone_ = false;
};

}  // namespace headrace::app
