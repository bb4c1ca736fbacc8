// Model flags as the library takes them.
#pragma once
#include "commands.h"
#include "headrace/llm/llm.h"

namespace headrace::app {

LLMOptions options_of(const ModelFlags& flags);

}  // namespace headrace::app
