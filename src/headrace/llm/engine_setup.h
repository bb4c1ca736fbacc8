// From LLMOptions to a model and the configuration of its engine.
#pragma once
#include <memory>

#include "headrace/llm/llm_options.h"

namespace headrace {

// Error kInvalidArgument for options that no model can have.
void check_options(const LLMOptions& options);
// Checks the options for this model before its weights are read.
std::unique_ptr<Model> load_checked(const ModelDescription& model, DeviceRuntime& runtime, const LLMOptions& options);
MemoryPlan cache_plan(const ModelInfo& model, Device device, const LLMOptions& options);
EngineConfig engine_config(const Model& model, const Tokenizer& tokenizer, DeviceRuntime& runtime,
                           const MemoryPlan& memory, const LLMOptions& options);

}  // namespace headrace
