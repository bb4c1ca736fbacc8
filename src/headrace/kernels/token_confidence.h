// What a sampler needs of rows of logits, in one pass over them: the most likely token and how sure the model is of it.
#pragma once
#include <optional>

#include "headrace/base/tensor.h"
#include "headrace/kernels/op_context.h"

namespace headrace {

// Of each row, over the ids [0, vocab) without excluded_id: the lowest id among those with the largest logit, and
//   largest; log_sum = ln sum exp(x - largest); second, the second-largest logit (the largest again on a tie);
//   entropy in nats.
// So p(best) = exp(-log_sum), ln p(i) = x[i] - largest - log_sum. Minus infinity is a probability of 0. A row with a
// logit that is NaN has a log_sum that is NaN. A row's results do not depend on the other rows or on the threads.
struct TokenConfidenceArgs {
  TensorView logits = {};  // float32 [rows, at least vocab]
  int32_t vocab = 0;
  std::optional<int32_t> excluded_id = {};  // below vocab; the mask token
  TensorView best = {};                     // int32 [rows]
  TensorView stats = {};                    // float32 [rows, 4]: largest, log_sum, second, entropy
};

// Error kInvalidArgument when shapes or dtypes disagree, or when no id is left.
void check(const TokenConfidenceArgs& args);

}  // namespace headrace
