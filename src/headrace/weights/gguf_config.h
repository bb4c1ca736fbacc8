// A GGUF file's metadata as the config.json and generation_config.json of the same model on Hugging Face. Keys:
// github.com/ggml-org/ggml, docs/gguf.md.
#pragma once
#include <vector>

#include "headrace/gguf/gguf_file.h"
#include "headrace/weights/config_file.h"

namespace headrace {

struct GgufDescription {
  JsonValue config, generation;  // `where` of their values begins with the file's name
};

// `files`: all parts of a model, the first one first. Beyond what config.json states, `config` has
// rope_parameters.divisors (of the frequencies, for rope_type "divided": a file holds Llama 3's scaling as such), and
// linear_projections "separate" for Qwen3-Next, whose config.json implies grouped ones. Layers that draft tokens
// (nextn_predict_layers) are not counted.
// Error, naming file and key: kUnsupported for an architecture that is not built, for what is no language model (an
// adapter, a projector), and for a key that changes the arithmetic in a way that is not built; kModelFile for a key
// that is missing, of another type, or out of bounds.
GgufDescription describe_gguf(const std::vector<GgufFile>& files);

}  // namespace headrace
