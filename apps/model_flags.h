// Flags of which model runs, and of where and how it does.
#pragma once
#include <CLI/CLI.hpp>

#include "commands.h"

namespace headrace::app {

void add_threads_flag(CLI::App& app, ModelFlags& flags);

// `names`: "-m,--model", with a positional name in front where a word without an option is the model. What is added
// behind these flags goes to the group of output.
void add_model_flags(CLI::App& app, ModelFlags& flags, const char* names = "model,-m,--model");

}  // namespace headrace::app
