// Rotary embedding of a model in GGUF files, as config.json states it.
#pragma once
#include <cstdint>
#include <string>

#include "headrace/weights/gguf_keys.h"
#include "headrace/weights/gguf_parts.h"

namespace headrace {

struct GgufRotary {
  const GgufParts& parts;  // not owned
  const GgufKeys& keys;    // not owned
  int64_t head_dim = 0, context = 0;
  bool is_hybrid = false;  // part of a head may rotate, by several positions
};

// Returns the object "rope_parameters". Error kModelFile, kUnsupported: one sentence that names the key or tensor.
std::string rope_parameters(const GgufRotary& rotary);

}  // namespace headrace
