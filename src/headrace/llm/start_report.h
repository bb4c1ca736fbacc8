// Reports the configuration of a run to the log: the choices of `auto`, and warnings.
#pragma once
#include <optional>
#include <string>

#include "headrace/core/log.h"
#include "headrace/llm/async_llm.h"

namespace headrace {

// kInfo: the model and its device; attention, strategy, context, and which steps are graphs; the cache's memory.
// kWarning: end tokens that the tokenizer lacks, failed graph capture, a context beyond the model's, a tokenizer with
// more tokens than the model, `d2f` for a full-attention model without an adapter, `multi_bd_edit` or `dmax` for a
// model not trained to edit. `options` are those of `llm`, with a log.
void report_start(const LLMOptions& options, AsyncLLM& llm);
// Warns about ModelRunner::failed_capture(). Steps that have no graphs by design are no warning.
void report_failed_capture(const LogCallback& log, const std::optional<std::string>& reason);

}  // namespace headrace
