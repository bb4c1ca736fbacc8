// Tokens drawn from rows of logits after temperature, top-k, top-p and min-p.
#pragma once
#include <optional>
#include <span>

#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"
#include "headrace/ops/token_draw.h"

namespace headrace {

// A row's candidates are the ids [0, vocab) without excluded_id in descending order of logit, equal ones in ascending
// order of id, each with the weight exp((logit - largest) / temperature). The first top_k stay; of these the shortest
// beginning with a share of top_p of their weight, or all of them when top_p_of is kAll and they have less of it; of
// these those with at least min_p of the first one's weight. The token is the one that `uniform` falls on when the
// weights stand side by side. A row does not depend on the others.
//
// The host's sets add in double. A device adds weights rounded to multiples of 2^-44 of the largest, so another token
// comes out only when `uniform` falls within 1e-8 of a border between two.
struct SampleTokensArgs {
  TensorView logits = {};  // float32 [rows, at least vocab]
  int32_t vocab = 0;
  std::optional<int32_t> excluded_id = {};
  TensorView best = {}, stats = {};         // as token_confidence wrote them of these logits
  TensorView draws = {};                    // uint8 [rows, sizeof(TokenDraw)]: a TokenDraw each
  std::span<const TokenDraw> on_host = {};  // the draws too, or none: a device saves a pass that none of them needs
  TensorView ids = {};                      // int32 [rows]
  TensorView chosen = {};                   // float32 [rows]: the ids' logits
};

// Error kInvalidArgument when shapes or dtypes disagree.
void check(const SampleTokensArgs& args);

}  // namespace headrace
