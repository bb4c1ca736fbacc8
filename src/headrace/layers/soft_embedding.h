// Soft embeddings for self-conditioning.
#pragma once
#include "headrace/batch/forward_batch.h"
#include "headrace/layers/layer_context.h"

namespace headrace {

// Returns [tokens, hidden] of the context's dtype: `scale` times the expected embedding under
// batch.soft.self_conditioning (required) for marked tokens, zeros for others (SoftEmbeddingArgs). `table`: float32 or
// bfloat16 [vocab, hidden]. Error kInvalidArgument for logits of another shape; kUnsupported if the device's ops lack
// soft_embedding.
Tensor soft_embeddings(const LayerContext& context, const ForwardBatch& batch, const TensorView& table, float scale);

}  // namespace headrace
