// Soft embeddings of tokens that are not final.
#pragma once
#include "headrace/batch/soft_inputs.h"
#include "headrace/layers/layer_context.h"

namespace headrace {

// Overwrites the flagged rows of `x` [tokens, hidden] with their soft embeddings over `table` [vocab, hidden], on a
// CPU; sums in double. Error kInvalidArgument for shapes, dtypes and ids that do not fit, naming the row. Callable from
// any thread.
void merge_tokens(const TokenMerge& merge, const TensorView& table, const TensorView& x);
// Applies the TokenMerge, if any, on the context's device. Error kUnsupported if its ops have no merge_tokens.
void merge_tokens(const LayerContext& context, const SoftInputs& soft, const WeightView& table, const TensorView& x);

}  // namespace headrace
