// The tensors of GGUF files as Hugging Face's checkpoints name, shape and order them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headrace/gguf/gguf_file.h"
#include "headrace/weights/stored_tensor.h"

namespace headrace {

// Tensors by Hugging Face's names.
using NamedTensors = std::vector<std::pair<std::string, StoredTensor>>;

// Returns a file's tensor under its own name, the slowest dimension first. It refers to the file.
StoredTensor stored_tensor_of(const GgufFile& file, const GgufTensor& tensor);

// Returns all tensors of a model's `files`, which outlive them. One that the architecture does not know keeps its name.
// Layers that predict several tokens are under "mtp.". Sources: gguf-py's tensor names, convert_hf_to_gguf's changes.
// Error kModelFile: a key or a tensor's shape that contradicts another.
NamedTensors huggingface_tensors(const std::vector<GgufFile>& files);

}  // namespace headrace
