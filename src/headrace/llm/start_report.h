// What a run starts with, for the log: the choices that `auto` made, and what may surprise.
#pragma once
#include <optional>
#include <string>

#include "headrace/core/log.h"
#include "headrace/llm/llm.h"

namespace headrace {

// kInfo: the model and its device; attention, strategy, context, and which steps are graphs. kWarning: graphs that
// could not be recorded, a context beyond the model's, a tokenizer that knows more tokens than the model, `d2f` for a
// model of whole canvases without an adapter, `multi_bd_edit` or `dmax` for one that was not trained to edit. `options`
// are those of `llm`, with a log.
void report_start(const LLMOptions& options, LLM& llm);
// The part of it that is ModelRunner::failed_capture(): what a strategy has no graphs for by design is no warning.
void report_failed_capture(const LogCallback& log, const std::optional<std::string>& reason);

}  // namespace headrace
