// Embedding lookup.
#pragma once
#include "headrace/core/weight_view.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// out[t] = table[ids[t]], converted to out's dtype.
struct EmbeddingArgs {
  TensorView ids = {};    // int32 [tokens]
  WeightView table = {};  // [vocab, dim], a float dtype; or packed
  TensorView out = {};    // [tokens, dim], a float dtype
};

// Throws Error kInvalidArgument if shapes or dtypes disagree, or if an id on the CPU is outside the table. Ids on a
// device are not checked.
void check(const EmbeddingArgs& args);

}  // namespace headrace
