// Rows of an embedding table.
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

// Error kInvalidArgument when shapes or dtypes disagree or an id is outside the table.
void check(const EmbeddingArgs& args);

}  // namespace headrace
