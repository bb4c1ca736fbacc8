// Loads a model with its progress on standard error.
#pragma once
#include <unistd.h>

#include <memory>

#include "headrace/core/scope_end.h"
#include "headrace/llm/llm.h"
#include "interrupt.h"
#include "load_progress.h"
#include "output.h"

namespace headrace::app {

// `Loaded`: LLM or AsyncLLM. Errors as its constructor's.
template <class Loaded>
std::unique_ptr<Loaded> load_with_progress(const ModelDescription& model, LLMOptions options) {
  const bool on_terminal = isatty(STDERR_FILENO) != 0;
  LoadProgress progress(on_terminal ? LoadProgress::Style::kBar : LoadProgress::Style::kLines);
  options.progress = [&progress](std::string_view, int64_t done, int64_t total) {
    write_err(progress.update(done, total));
  };
  const ScopeEnd loaded([&progress] {
    say_when_interrupted(nullptr);
    write_err(progress.finish());  // an error's sentence gets a line of its own
  });
  if (on_terminal) say_when_interrupted(LoadProgress::kWipe);
  return std::make_unique<Loaded>(model, options);
}

}  // namespace headrace::app
