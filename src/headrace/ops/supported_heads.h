// Checks that an op table supports a model's sizes and dtypes. Layers and models call them at construction, so that an
// unsupported model fails before its first batch.
#pragma once
#include <string_view>

#include "headrace/ops/op_set.h"

namespace headrace {

// Each throws Error kUnsupported with a message that names the layer, if any, the size found and the sizes built.
void require_head_dim(const OpSet& ops, int32_t layer_id, int32_t head_dim);
void require_gdn_key_dim(const OpSet& ops, int32_t layer_id, int32_t head_k_dim);
// Checks the dtype of `what`, for example "activations". Every op table supports float32, bfloat16 and float16.
void require_float(const OpSet& ops, int32_t layer_id, std::string_view what, DType dtype);
void require_conv_width(const OpSet& ops, int32_t layer_id, int32_t width);
void require_experts(const OpSet& ops, int32_t layer_id, int64_t num_experts);
void require_vocab(const OpSet& ops, int64_t vocab);

}  // namespace headrace
