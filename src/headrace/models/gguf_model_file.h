// A model as a GGUF file.
#pragma once
#include <filesystem>
#include <string>

#include "headrace/core/log.h"
#include "headrace/weights/gguf_export.h"
#include "headrace/weights/model_description.h"

namespace headrace {

class SigbusGuard;

// Returns a model's name for its file: "Qwen3-0.6B" of a directory, of a repository in Hugging Face's cache, or of a
// GGUF file.
std::string gguf_model_name(const std::filesystem::path& model);

struct GgufFileOptions {
  GgufTarget target;
  int threads = 1;
  ProgressCallback progress;  // the tensor at hand, bytes written, bytes in all; may throw to stop
  LogCallback log;
  SigbusGuard* guard = nullptr;  // not owned
};

// Writes the model of a directory with its tokenizer, chat template and sampling defaults, or a GGUF file's model anew,
// to `file`, which is replaced once it is complete. Some megabytes of weights are in memory at a time. Errors, one
// sentence each: kUnsupported for a family or a tokenizer that GGUF files do not have, and for weights that are
// quantised already; kModelFile for a file of the model, and for a weight that is no finite number; kIo for the disk;
// what `progress` throws.
void write_gguf(const ModelDescription& model, const std::filesystem::path& file, const GgufFileOptions& options);

}  // namespace headrace
