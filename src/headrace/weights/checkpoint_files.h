// Which files of a model directory hold its weights.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "headrace/weights/checkpoint.h"
#include "headrace/weights/config_file.h"
#include "headrace/weights/safetensors_file.h"

namespace headrace {

// Error kUnsupported, naming it, when `model` is a file in another format than safetensors (GGUF, pickle), or a
// directory that holds one and no safetensors. So it is named before the files that come beside safetensors are missed.
// Error kModelFile when it is another file.
void refuse_other_formats(const std::filesystem::path& model);

// Error kUnsupported if config.json says that the weights are quantised.
void refuse_quantised_config(const JsonValue& config);

// Tensors that an index lists and no shard holds, each with the path of the shard that it names.
using AbsentTensors = std::map<std::string, std::string, std::less<>>;

struct CheckpointFiles {
  std::vector<SafetensorsFile> files;  // by name
  AbsentTensors absent;
};

// Opens and validates the files of `directory`. An index says which files count, and what they hold is what they say;
// a shard may be missing when the index maps nothing to it but other parts (other_parts.h). Together the files hold no
// tensor twice. Errors as of Checkpoint::open.
CheckpointFiles open_checkpoint_files(const std::filesystem::path& directory, const CheckpointOptions& options);

}  // namespace headrace
