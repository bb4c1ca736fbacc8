// Soft embedding for self-conditioning: the expected embedding under the previous denoising step's distribution.
#pragma once
#include "headrace/batch/soft_inputs.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// out[t] = scale * sum_v softmax(logits[i])[v] * table[v] for rows that signal.mask marks, where i counts the marked
// rows in order. Other rows are zero. Sums are float32 or wider; a row's bits do not depend on the other rows. The mask
// must mark as many rows as there are logits; only the host can check that.
struct SoftEmbeddingArgs {
  SelfConditioning signal;
  TensorView table = {};  // [vocab, hidden], a float dtype
  float scale = 1;
  TensorView out = {};  // [tokens, hidden], a float dtype, dense
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const SoftEmbeddingArgs& args);

}  // namespace headrace
