// What a run starts with, for the log: the choices that `auto` made, and what may surprise.
#pragma once
#include "headrace/base/log.h"
#include "headrace/llm/llm.h"

namespace headrace {

// kInfo: the model and its device; attention, strategy and context. kWarning: a context beyond the model's, a tokenizer
// that knows more tokens than the model. `log` is not empty.
void report_start(const LogCallback& log, LLM& llm);

}  // namespace headrace
