// Repetition penalty on rows of logits, by the tokens that occurred in each row's text.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// First marks new_ids as occurred in their texts. Then, for each token that occurred in the row's text, divides its
// logit by the penalty if the logit is positive and multiplies it otherwise. Ignores ids outside [0, vocab).
// Source: Keskar et al. 2019 (CTRL), as in transformers.
struct PenalizeTokensArgs {
  TensorView logits = {};  // float32 [rows, at least vocab], updated in place
  int32_t vocab = 0;
  TensorView seen = {};  // int32 [texts, at least words_of(vocab)], token-occurrence bitmap: bit i % 32 of word i / 32
                         // is set if token i occurred
  // int32 [any number], or null: further tokens that occurred, and the text of each.
  TensorView new_ids = {}, new_texts = {};
  TensorView texts = {};      // int32 [rows]: row of `seen`, or -1 to leave the logits unchanged
  TensorView penalties = {};  // float32 [rows], positive

  static int64_t words_of(int32_t vocab) { return (int64_t{vocab} + 31) / 32; }
};

// Throws Error kInvalidArgument if shapes or dtypes disagree.
void check(const PenalizeTokensArgs& args);

}  // namespace headrace
