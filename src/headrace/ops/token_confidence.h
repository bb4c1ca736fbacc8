// Statistics of rows of logits in one pass: the most likely token and the model's confidence in it.
#pragma once
#include <optional>

#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Per row, over the ids [0, vocab) without excluded_id: `best` is the lowest id with the largest logit, `largest` that
// logit, and `second` the second-largest logit (equal to largest on a tie). Over all columns without excluded_id:
//   log_sum = ln sum exp(x - largest); entropy in nats.
// So p(best) = exp(-log_sum) and ln p(i) = x[i] - largest - log_sum. Ids from vocab on are never `best`, but have a
// probability. A logit of minus infinity has probability 0. A NaN logit makes the row's log_sum NaN; `best` is then any
// of the ids. A row's results depend neither on the other rows nor on the number of threads.
struct TokenConfidenceArgs {
  TensorView logits = {};                   // float32 [rows, the model's vocabulary]
  int32_t vocab = 0;                        // number of ids that may be chosen, at most the model's vocabulary
  std::optional<int32_t> excluded_id = {};  // an id of the model's vocabulary, usually the mask token
  TensorView best = {};                     // int32 [rows]
  TensorView stats = {};                    // float32 [rows, 4]: largest, log_sum, second, entropy
};

// Throws Error kInvalidArgument if shapes or dtypes disagree, or if no id is left.
void check(const TokenConfidenceArgs& args);

}  // namespace headrace
