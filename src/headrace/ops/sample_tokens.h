// Samples tokens from rows of logits after temperature, top-k, top-p and min-p.
#pragma once
#include <optional>
#include <span>

#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"
#include "headrace/ops/token_draw.h"

namespace headrace {

// A row's candidates are the ids [0, vocab) without excluded_id, in descending order of logit and, for equal logits, in
// ascending order of id. The weight of a candidate is exp((logit - largest) / temperature). Three filters apply in
// order:
// - top_k keeps the first top_k candidates.
// - top_p keeps the shortest prefix whose share of the weight reaches top_p. top_p_of says of which weight; all
// candidates stay if with kAll they do not reach it.
// - min_p keeps candidates of at least min_p times the first one's weight.
// The token is the first at which the cumulative weight exceeds `uniform` times the total. Rows are independent of each
// other.
//
// Host implementations add in double. A device adds weights rounded to multiples of 2^-44 of the largest; its token
// differs only if `uniform` falls within 1e-8 of a border between two tokens.
struct SampleTokensArgs {
  TensorView logits = {};  // float32 [rows, at least vocab]
  int32_t vocab = 0;
  std::optional<int32_t> excluded_id = {};
  TensorView best = {}, stats = {};         // outputs of token_confidence for these logits
  TensorView draws = {};                    // uint8 [rows, sizeof(TokenDraw)]: one TokenDraw per row
  std::span<const TokenDraw> on_host = {};  // host copy of draws, or empty; a device then skips unneeded passes
  TensorView ids = {};                      // int32 [rows]
  TensorView chosen = {};                   // float32 [rows]: logits of ids
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const SampleTokensArgs& args);

}  // namespace headrace
