// Prompts of benchmarks.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/models/model.h"

namespace headrace::app {

// Returns `len` random ids of the model's vocabulary without its mask token, the same for the same seed.
std::vector<int32_t> random_prompt(const ModelInfo& info, int32_t len, uint64_t seed);

}  // namespace headrace::app
