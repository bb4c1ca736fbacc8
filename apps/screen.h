// Where generate() writes while it runs: text as it becomes certain, on a terminal the block that is being denoised
// behind it, and the trace.
#pragma once
#include <optional>

#include "commands.h"
#include "denoise_view.h"
#include "headrace/llm/llm.h"
#include "output.h"

namespace headrace::app {

class Screen {
 public:
  // Error kInvalidArgument when the trace file cannot be written. `llm` is not owned.
  Screen(const GenerateFlags& flags, const LLM& llm);

  void text(std::string_view piece);
  void finish();
  bool reader_gone() const { return reader_gone_; }  // a closed pipe
  LLM::OnStep on_step();                             // empty when nothing watches steps

 private:
  void write(std::string_view bytes);

  const Tokenizer& tokenizer_;
  std::optional<DenoiseView> view_;
  std::optional<OutputFile> trace_;
  bool reader_gone_ = false;
};

}  // namespace headrace::app
