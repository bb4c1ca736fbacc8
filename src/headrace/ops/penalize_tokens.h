// The repetition penalty, on rows of logits, by the tokens that the text of each row's request has so far.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// First new_ids and last_ids become tokens of their texts; then a logit of a token that occurred in the row's text is
// divided by the penalty if it is positive, and multiplied by it otherwise. Ids outside [0, vocab) are left out.
// Source: Keskar et al. 2019 (CTRL), as transformers has it.
struct PenalizeTokensArgs {
  TensorView logits = {};  // float32 [rows, at least vocab], changed
  int32_t vocab = 0;
  TensorView seen = {};  // int32 [texts, at least words_of(vocab)]: bit i % 32 of word i / 32: i occurred
  // int32 [any number], or null: tokens that occurred as well, and in whose text.
  TensorView new_ids = {}, new_texts = {};
  TensorView last_ids = {};   // int32 [rows], or null: likewise, one of each row's text
  TensorView texts = {};      // int32 [rows]: of `seen`, or -1 for a row that stays; with last_ids each once
  TensorView penalties = {};  // float32 [rows], positive

  static int64_t words_of(int32_t vocab) { return (int64_t{vocab} + 31) / 32; }
};

// Error kInvalidArgument when shapes or dtypes disagree.
void check(const PenalizeTokensArgs& args);

}  // namespace headrace
