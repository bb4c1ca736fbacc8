// Prompts of a length that a model was not trained on.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "headrace/weights/model_description.h"

namespace headrace::app {

// Returns one sentence if generation_config.json states a prompt_multiple and `num_tokens` of a prompt are no multiple
// of it; its end is the file's prompt_hint, which says what to ask instead. Error kModelFile for values of another
// type.
std::optional<std::string> prompt_length_warning(const ModelDescription& model, size_t num_tokens);

}  // namespace headrace::app
