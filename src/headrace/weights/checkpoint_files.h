// Which files of a model directory hold its weights. For checkpoint.cpp.
#pragma once
#include <filesystem>
#include <vector>

#include "headrace/weights/checkpoint.h"
#include "headrace/weights/safetensors_file.h"

namespace headrace {

// The files of `directory`, opened and validated, and checked against the index if there is one; together they hold no
// tensor twice. Errors as of Checkpoint::open.
std::vector<SafetensorsFile> open_checkpoint_files(const std::filesystem::path& directory,
                                                   const CheckpointOptions& options);

}  // namespace headrace
