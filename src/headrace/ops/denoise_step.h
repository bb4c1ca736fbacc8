// Device-side end of a denoise step: updates the blocks of a batch from the model's outputs and lays out the next step
// without the host. BlockRule describes a strategy's rule; nothing here depends on a particular strategy.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/denoise_state.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Batch arrays of a step, in the memory of a DeviceBatch. Each is sized for the largest batch.
struct BatchRows {
  TensorView spans = {};        // uint8 [requests * sizeof(KeySpan)]
  TensorView ids = {};          // int32 [rows]
  TensorView positions = {};    // int32 [rows]
  TensorView write_slots = {};  // int64 [rows]
  TensorView logits_rows = {};  // int32 [logits rows]
  TensorView num_rows = {};     // int32 [1]: rows before the padding
  TensorView page_table = {};   // int32 [table rows, pages]

  int64_t num_spans() const { return spans.numel() / static_cast<int64_t>(sizeof(KeySpan)); }
};

// Step report to the host. `step` is written last: when it changes, all other fields are valid.
struct DenoiseReport {
  int32_t step = 0;
  int32_t rows = 0, logits_rows = 0;  // of the next step
  int32_t size = 0;                   // smallest of `sizes` that holds the rows; 0: none
  int32_t canvases = 0;               // 1: `size` is one of the sizes for steps with canvases
  int32_t running = 0;                // requests still running in the next step
};

// Advances every running DenoiseState with its rows [first_logit..] of ids, logits and stats, then writes the arrays of
// the next step:
// - Request r's rows are those of its next pass, in the order of the states. DenoiseState determines their positions
// and spans, how many of the first rows are stored, which rows have logits and how their tokens are drawn. The page
// table gives the write slots. first_logit is set to the request's first logits row.
// - Padding up to `size` rows belongs to the last span, sees nothing and is not stored. Spans of finished requests are
// empty.
// - Unused logits rows are 0 and draw the most likely token.
// `report` gets step `counter`[0] + 1. `results` gets this step's best, stats, ids and logits: `counter`[1] rows, in
// half step % 2. Both may be memory that the host polls. `counter` is updated for the next step.
struct DenoiseStepArgs {
  TensorView best = {}, stats = {};  // outputs of token_confidence: int32 [logits rows], float32 [logits rows, 4]
  TensorView ids = {}, logits = {};  // outputs of sample_tokens: int32 [logits rows], float32 [logits rows]
  TensorView draws = {};             // written for the next step: uint8 [logits rows, sizeof(TokenDraw)]
  TensorView states = {};            // uint8 [requests * sizeof(DenoiseState)], updated
  TensorView tokens = {};   // int32 [requests, n], updated: each row begins with the tokens of DenoiseState::advance
  TensorView counter = {};  // int32 [2], updated: steps so far, logits rows of this step
  // int32 [sizes]: row counts that a step may have. The first `block_sizes`, ascending, are for steps without canvases;
  // the rest, ascending, are for any step.
  TensorView sizes = {};
  int32_t block_sizes = 0;
  int32_t most_rows = 0;   // most rows of any step; the caller that sets the states guarantees it
  int32_t block_size = 0;  // 1 to DenoiseState::kMaxBlock
  int32_t mask_token_id = 0;
  int32_t page_size = 1;
  BatchRows rows;           // at least one span more than requests; the other arrays hold most_rows
  TensorView report = {};   // uint8 [sizeof(DenoiseReport)]
  TensorView results = {};  // int32 [2, rows, kResultWords]: best, the bits of stats, id, the bits of its logit

  int64_t requests() const { return states.numel() / static_cast<int64_t>(sizeof(DenoiseState)); }
};

inline constexpr int32_t kMaxBlockRequests = 1024;  // requests per denoise_step
inline constexpr int32_t kResultWords = 7;          // int32 words per row of results

// Throws Error kInvalidArgument if shapes or dtypes disagree, or if the next step's rows might not fit.
void check(const DenoiseStepArgs& args);

}  // namespace headrace
