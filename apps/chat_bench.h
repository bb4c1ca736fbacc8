// `headrace bench chat`: the second turn of a chat, and a beginning that two requests share.
#pragma once
#include "bench/report.h"
#include "headrace/llm/llm.h"

namespace headrace::app {

// The time to the first token of a turn of 64 tokens, behind one of 64 and its answer of 512: where the engine goes on
// behind what the first turn left, and where it computes all of it again. Then the time to the first token of a prompt
// of 8192 tokens, or of the context, whose first 80 % are cached, and that of the rest as a prompt of its own.
void bench_chat(LLM& llm, const bench::Report& report);

}  // namespace headrace::app
