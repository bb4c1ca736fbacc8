// generate --trace FILE: one JSON object per line and step.
#pragma once
#include <string>

#include "headrace/llm/step_recorder.h"
#include "headrace/text/tokenizer.h"

namespace headrace::app {

// {"step", "context", "first", "rows", "stored": [begin, end], "blocks": [{"begin", "end", "state", "masks"}],
//  "decided": [{"position", "id", "text", "confidence"}]}, and a line feed.
std::string trace_line(const StepReport& report, const Tokenizer& tokenizer);

}  // namespace headrace::app
