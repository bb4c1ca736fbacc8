// The memory that a model needs, and how many requests fit beside it.
#pragma once
#include <cstdint>
#include <optional>

#include "headrace/llm/llm_options.h"

namespace headrace {

inline constexpr int32_t kDefaultPageSize = 64;  // LLMOptions has it by default

struct ModelNeed {
  int64_t weights = 0, per_token = 0, per_request = 0;  // bytes

  int64_t of(int64_t tokens) const { return weights + per_request + tokens * per_token; }
};

// `kv_dtype`: of keys and values; absent: that of activations.
ModelNeed need_of(const ModelInfo& info, std::optional<DType> kv_dtype = {});

// Returns a value for LLMOptions::max_num_seqs: requests of a chat's length that half of the free memory holds, at most
// 32 on a CPU and 256 on a GPU, where more make no step faster. Opens the device, but reads no weights.
int32_t default_num_seqs(const ModelDescription& model, const LLMOptions& options);

}  // namespace headrace
