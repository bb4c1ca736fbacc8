// `headrace bench template`: what a chat costs before the model sees it.
#pragma once
#include <filesystem>

namespace headrace::app {

// Prints one JSON object each for rendering a chat of 20 turns by the model's template and for tokenising the text:
// microseconds of CPU time. Error kInvalidArgument: the model has no template, or it refuses the chat.
void bench_template(const std::filesystem::path& model);

}  // namespace headrace::app
