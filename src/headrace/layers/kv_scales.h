// Scales of an 8-bit KV cache, from a checkpoint.
#pragma once
#include <optional>

#include "headrace/cache/kv_pool.h"
#include "headrace/weights/weight_scope.h"

namespace headrace {

// Reads the scales of the attention layer whose tensors are in `attention` ("...self_attn."): one number each for K and
// V, named attn.k_scale (vLLM), k_scale (compressed-tensors), k_proj.k_scale or k_proj.output_scale (older exports),
// likewise for v. A missing one is 1; returns nothing if both are missing. Error kModelFile for a shape other than []
// or [1] and for a number that is not positive.
std::optional<KVLayerScales> kv_scales(const WeightScope& attention, int32_t layer_id);

}  // namespace headrace
