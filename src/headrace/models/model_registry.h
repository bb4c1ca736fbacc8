// Registry of models by the architecture that config.json names.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/core/log.h"
#include "headrace/models/model.h"
#include "headrace/models/model_config.h"
#include "headrace/ops/op_set.h"
#include "headrace/weights/model_description.h"
#include "headrace/weights/quant_preset.h"

namespace headrace {

class SigbusGuard;
struct ModelGemm;

struct ModelOptions {
  std::optional<DType> dtype;  // activations; absent: config.json's, else the files'; float32 for float16
  // Overrides of config.json.
  std::optional<int32_t> mask_token_id, block_size;
  const OpSet* ops = nullptr;  // not owned; null: the best CPU backend's
  OpContext context;
  DeviceRuntime* runtime = nullptr;              // device of the model and of `ops`; not owned; null: the CPU's
  std::optional<uint64_t> random_weights;        // a seed: only config.json is read
  std::optional<std::filesystem::path> adapter;  // a LoRA directory, merged into the weights
  std::optional<QuantPreset> quantize;           // weights of floats become blocks at load; on a CPU
  ProgressCallback progress;
  LogCallback log;
  SigbusGuard* guard = nullptr;  // not owned
};

std::vector<std::string_view> architecture_names();

// Returns what the description alone states about the model, before weights are read: architecture, vocabulary,
// context, layers, EOS ids, pools, diffusion. Nothing about weights. Errors as load_model.
ModelInfo stated_info(const ModelDescription& model, const ModelOptions& options);

// Returns the configuration that the description states. Errors as load_model.
ModelConfig stated_config(const ModelDescription& model, const ModelOptions& options);

// Returns the name of the repository that the directory is a copy of: its own, or "models--owner--name" for a commit in
// Hugging Face's cache.
std::string repository_name(const std::filesystem::path& directory);

// Returns the GEMMs of the model on a device, from the description alone (causal_lm_gemms). Errors as load_model.
std::vector<ModelGemm> stated_gemms(const ModelDescription& model, const ModelOptions& options);

struct ModelSummary {
  ModelInfo info;
  int64_t parameters = 0;  // parameters of the text model
};
// As stated_info, plus the sizes in the weight files' headers: parameters and bytes read per step. Reads no weights.
// Errors as load_model, except for missing or misshapen tensors.
ModelSummary model_summary(const ModelDescription& model, const ModelOptions& options);

// Loads the model. Error kModelFile (files of the model, or an adapter that does not fit it),
// kUnsupported or kInvalidArgument (an adapter on random weights), one sentence.
std::unique_ptr<Model> load_model(const ModelDescription& model, const ModelOptions& options);
// Reads the description of the model in `directory` first. Errors also as read_description.
std::unique_ptr<Model> load_model(const std::filesystem::path& directory, const ModelOptions& options);

}  // namespace headrace
