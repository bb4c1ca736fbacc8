// Models by the architecture that config.json names.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "headrace/core/log.h"
#include "headrace/models/model.h"
#include "headrace/ops/op_set.h"

namespace headrace {

class SigbusGuard;

struct ModelOptions {
  std::optional<DType> dtype;  // of activations; absent: what config.json states, else the files'; float32 for float16
  // What the caller states where config.json does not, or states another.
  std::optional<int32_t> mask_token_id, block_size;
  const OpSet* ops = nullptr;  // not owned; null: those of the best backend on the CPU
  OpContext context;
  DeviceRuntime* runtime = nullptr;        // where the model runs, whose ops are given; not owned; null: the CPU's
  std::optional<uint64_t> random_weights;  // a seed: only config.json is read
  std::optional<std::filesystem::path> adapter;  // a LoRA directory, merged into the weights
  ProgressCallback progress;
  LogCallback log;
  SigbusGuard* guard = nullptr;  // not owned
};

std::vector<std::string_view> architecture_names();

// What config.json alone says of the model in `directory`, before weights are read: architecture, vocabulary, context,
// layers, end tokens, what pools it needs, how its tokens are decided; nothing of weights. Errors as load_model.
ModelInfo stated_info(const std::filesystem::path& directory, const ModelOptions& options);

struct ModelSummary {
  ModelInfo info;
  int64_t parameters = 0;  // of the text model
};
// The same with what the headers of the weights' files say: how many there are, how many bytes a step reads. Weights
// are not read. Errors as load_model, but for tensors that are missing or of another shape.
ModelSummary model_summary(const std::filesystem::path& directory, const ModelOptions& options);

// The model in `directory`. Error kModelFile (files of the model, or an adapter that does not fit it), kUnsupported or
// kInvalidArgument (an adapter on random weights), one sentence.
std::unique_ptr<Model> load_model(const std::filesystem::path& directory, const ModelOptions& options);

}  // namespace headrace
