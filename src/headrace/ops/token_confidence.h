// What a sampler needs of rows of logits, in one pass over them: the most likely token and how sure the model is of it.
#pragma once
#include <optional>

#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Of each row, over the ids [0, vocab) without excluded_id: the lowest id among those with the largest logit, that
// logit (largest), and the second-largest one (second; the largest again on a tie). Over all columns without
// excluded_id:
//   log_sum = ln sum exp(x - largest); entropy in nats.
// So p(best) = exp(-log_sum), ln p(i) = x[i] - largest - log_sum: ids from vocab on are never best, and have a
// probability all the same. Minus infinity is a probability of 0. A row with a logit that is NaN has a log_sum that is
// NaN. A row's results do not depend on the other rows or on the threads.
struct TokenConfidenceArgs {
  TensorView logits = {};                   // float32 [rows, the model's vocabulary]
  int32_t vocab = 0;                        // ids that may be chosen: at most the model's
  std::optional<int32_t> excluded_id = {};  // of the model's vocabulary; the mask token
  TensorView best = {};                     // int32 [rows]
  TensorView stats = {};                    // float32 [rows, 4]: largest, log_sum, second, entropy
};

// Error kInvalidArgument when shapes or dtypes disagree, or when no id is left.
void check(const TokenConfidenceArgs& args);

}  // namespace headrace
