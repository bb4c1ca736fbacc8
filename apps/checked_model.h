// Refuses what can be known to be wrong before a model is loaded for nothing.
#pragma once
#include <string>

#include "commands.h"
#include "headrace/llm/llm_options.h"
#include "headrace/weights/model_description.h"

namespace headrace::app {

struct CheckedModel {
  LLMOptions options;
  ModelDescription description;
};
// Asks the strategy and the model that the flags name what they refuse. `demo`: the bundled model of flags that name
// none. Errors as validate, options_of, model_directory and read_description.
CheckedModel checked_model(const GenerateFlags& flags, const std::string& demo);

}  // namespace headrace::app
