// The scales that a checkpoint brings for a cache of 8-bit keys and values.
#pragma once
#include <optional>

#include "headrace/cache/kv_pool.h"
#include "headrace/weights/weight_scope.h"

namespace headrace {

// Of the attention layer whose tensors `attention` ("...self_attn.") holds: one number each for keys and values, looked
// for as attn.k_scale (vLLM), k_scale (compressed-tensors), k_proj.k_scale, k_proj.output_scale (older exports) and the
// same of v; one that is missing is 1, and absent is returned when both are. Error kModelFile for a shape other than []
// or [1] and for a number that is not positive.
std::optional<KVLayerScales> kv_scales(const WeightScope& attention, int32_t layer_id);

}  // namespace headrace
