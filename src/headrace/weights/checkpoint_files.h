// Which files of a model directory hold its weights.
#pragma once
#include <filesystem>
#include <vector>

#include "headrace/weights/checkpoint.h"
#include "headrace/weights/safetensors_file.h"

namespace headrace {

// Error kUnsupported, naming it, when `model` is a file of a format that is known and not built (GGUF, pickle), or a
// directory that holds one and no safetensors. So it is named before the files that come beside safetensors are missed.
// Error kModelFile when it is another file.
void refuse_other_formats(const std::filesystem::path& model);

// The files of `directory`, opened and validated, and checked against the index if there is one; together they hold no
// tensor twice. Errors as of Checkpoint::open.
std::vector<SafetensorsFile> open_checkpoint_files(const std::filesystem::path& directory,
                                                   const CheckpointOptions& options);

}  // namespace headrace
