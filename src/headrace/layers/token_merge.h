// Soft tokens: the embedding of a row that does not hold one token for certain.
#pragma once
#include "headrace/batch/attn_metadata.h"
#include "headrace/layers/layer_context.h"

namespace headrace {

// Overwrites the flagged rows of `x` [tokens, hidden] with their blend of rows of `table` [vocab, hidden]; the sums are
// double. Error kInvalidArgument for shapes, dtypes and ids that do not fit, naming the row. Callable from any thread.
void merge_tokens(const TokenMerge& merge, const TensorView& table, const TensorView& x);
// That of the batch, wherever layers run; nothing for a batch without one.
void merge_tokens(const LayerContext& context, const AttnMetadata& batch, const TensorView& table, const TensorView& x);

}  // namespace headrace
