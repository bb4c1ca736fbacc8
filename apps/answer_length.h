// The length of answers to which nobody gave one.
#pragma once
#include <cstdint>

#include "headrace/engine/engine.h"
#include "headrace/models/model.h"
#include "headrace/weights/model_description.h"

namespace headrace::app {

// Returns max_new_tokens of generation_config.json, else kUntilFull. A canvas is computed as a whole, however short the
// answer is: without that file it has as many tokens as SamplingParams says.
int32_t default_max_tokens(const ModelDescription& description, const EngineConfig& config, const ModelInfo& model);

}  // namespace headrace::app
