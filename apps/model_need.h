// Memory that a model needs.
#pragma once
#include <cstdint>
#include <optional>

#include "headrace/models/model.h"

namespace headrace::app {

inline constexpr int32_t kPageSize = 64;  // LLMOptions has it by default

struct ModelNeed {
  int64_t weights = 0, per_token = 0, per_request = 0;  // bytes

  int64_t of(int64_t tokens) const { return weights + per_request + tokens * per_token; }
};

// `kv_dtype`: of keys and values; absent: that of activations.
ModelNeed need_of(const ModelInfo& info, std::optional<DType> kv_dtype = {});

}  // namespace headrace::app
