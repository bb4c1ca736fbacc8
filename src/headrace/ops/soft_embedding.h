// What a denoising step hands to the next one: the embedding of a distribution over the vocabulary.
#pragma once
#include "headrace/batch/self_conditioning.h"
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// out[t] = scale * sum_v softmax(logits[i])[v] * table[v] for rows that the mask marks, i counting those rows in their
// order, and zeros for the others. Sums are float32 or wider; a row's bits do not depend on the others. The mask marks
// as many rows as there are logits: only the host can check that.
struct SoftEmbeddingArgs {
  SelfConditioning signal;
  TensorView table = {};  // [vocab, hidden], a float dtype
  float scale = 1;
  TensorView out = {};  // [tokens, hidden], a float dtype, dense
};

// Error kInvalidArgument for shapes and dtypes that do not fit.
void check(const SoftEmbeddingArgs& args);

}  // namespace headrace
