// Embedding lookup.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// out[t] = table[ids[t]], converted to out's dtype.
struct EmbeddingArgs {
  TensorView ids = {};    // int32 [tokens]
  TensorView table = {};  // [vocab, dim], a float dtype
  TensorView out = {};    // [tokens, dim], a float dtype
};

// Throws Error kInvalidArgument if shapes or dtypes disagree, or if an id on the CPU is outside the table. Ids on a
// device are not checked.
void check(const EmbeddingArgs& args);

}  // namespace headrace
