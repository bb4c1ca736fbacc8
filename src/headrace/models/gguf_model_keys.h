// A model's configuration as the keys of a GGUF file: the inverse of weights/gguf_config.h.
#pragma once
#include <string>
#include <vector>

#include "headrace/gguf/gguf_writer.h"
#include "headrace/models/model_config.h"
#include "headrace/weights/gguf_layout.h"

namespace headrace {

// Sizes for gguf_exports(). Error kUnsupported for a family that GGUF files do not have, by name.
GgufSizes gguf_sizes_of(const ModelConfig& config);

// Returns the keys of the architecture, general.architecture first. Error kUnsupported, naming it, for a configuration
// that files of the architecture cannot state.
std::vector<GgufKey> gguf_model_keys(const ModelConfig& config);

// Returns the divisors of a head's frequencies, which files hold in rope_freqs.weight; empty: they are not scaled so.
std::vector<float> gguf_rope_divisors(const ModelConfig& config);

}  // namespace headrace
