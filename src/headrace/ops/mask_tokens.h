// Forbids tokens by bitmasks.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Sets logits[rows[i], id] to minus infinity for each id of [0, vocab) whose bit, id % 32 of word id / 32 of bits[i],
// is 0. Ids from vocab on stay as they are. No row occurs twice.
struct MaskTokensArgs {
  TensorView logits = {};  // float32 [rows, at least vocab], updated in place
  int32_t vocab = 0;
  TensorView rows = {};  // int32 [masks]: in range
  TensorView bits = {};  // int32 [masks, at least words_of(vocab)]

  static int64_t words_of(int32_t vocab) { return (int64_t{vocab} + 31) / 32; }
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const MaskTokensArgs& args);

}  // namespace headrace
