// Sizes of heads, convolutions, mixtures and vocabularies, and dtypes, that a kernel set does not run are refused when
// a layer or a model is made, not in its first batch.
#pragma once
#include <string_view>

#include "headrace/ops/op_set.h"

namespace headrace {

// Error kUnsupported, naming the layer, if it is one, what it has and what is built.
void require_head_dim(const OpSet& ops, int32_t layer_id, int32_t head_dim);
void require_gdn_key_dim(const OpSet& ops, int32_t layer_id, int32_t head_k_dim);
// `what` has that dtype: "activations". Every set has the same three.
void require_float(const OpSet& ops, int32_t layer_id, std::string_view what, DType dtype);
void require_conv_width(const OpSet& ops, int32_t layer_id, int32_t width);
void require_experts(const OpSet& ops, int32_t layer_id, int64_t num_experts);
void require_vocab(const OpSet& ops, int64_t vocab);

}  // namespace headrace
