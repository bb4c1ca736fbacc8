// The end of a denoise step: what the model said of a batch's blocks becomes their tokens, and the rows of the next
// step are laid out, without the host. Strategies describe themselves by BlockRule; no strategy is named here.
#pragma once
#include "headrace/core/tensor.h"
#include "headrace/ops/denoise_state.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// Where a batch's rows lie; a DeviceBatch's memory, each array as long as its largest batch.
struct BatchRows {
  TensorView spans = {};        // uint8 [requests * sizeof(KeySpan)]
  TensorView ids = {};          // int32 [rows]
  TensorView positions = {};    // int32 [rows]
  TensorView write_slots = {};  // int64 [rows]
  TensorView logits_rows = {};  // int32 [logits rows]
  TensorView num_rows = {};     // int32 [1]: how many of them come before the padding
  TensorView page_table = {};   // int32 [table rows, pages]

  int64_t num_spans() const { return spans.numel() / static_cast<int64_t>(sizeof(KeySpan)); }
};

// What the host learns of a step. `step` is written last: once it has changed, everything else is there.
struct DenoiseReport {
  int32_t step = 0;
  int32_t rows = 0, logits_rows = 0;  // of the next step
  int32_t size = 0;                   // the smallest of `sizes` that holds the rows, or 0 for none
  int32_t canvases = 0;               // 1: it is one of those for steps with canvases
  int32_t running = 0;                // requests that it goes on with
};

// Updates every state that runs, from what lies at [first_logit..] of ids, logits and stats, and writes the next step:
//   request r's rows are those of its next pass, in the order of the states: DenoiseState says which positions, who
//   sees whom, how many of the first are stored, where the page table says, which rows want logits, and how their
//   tokens are drawn; first_logit says where those will be. Padding up to `size` rows, the last span's, sees nothing,
//   is not stored, and spans of requests that are done have no rows. Logits rows behind those wanted are 0, and have
//   the most likely token.
// `report` gets the step after `counter`[0] and, at `results`, this step's best, stats, ids and logits: `counter`[1]
// rows, in the half that step % 2 says. Both may be memory that the host polls. counter becomes the next step's.
struct DenoiseStepArgs {
  TensorView best = {}, stats = {};  // of token_confidence: int32 [logits rows], float32 [logits rows, 4]
  TensorView ids = {}, logits = {};  // of sample_tokens: int32 [logits rows], float32 [logits rows]
  TensorView draws = {};             // becomes the next step's: uint8 [logits rows, sizeof(TokenDraw)]
  TensorView states = {};            // uint8 [requests * sizeof(DenoiseState)]
  TensorView tokens = {};            // int32 [requests, n]: of each, as DenoiseState::advance has them, at the front
  TensorView counter = {};           // int32 [2]: steps so far, rows of logits of this one
  // int32 [sizes]: rows that a step may have. `block_sizes` of them, ascending, for steps without canvases, then those,
  // ascending, for all steps.
  TensorView sizes = {};
  int32_t block_sizes = 0;
  int32_t most_rows = 0;   // of any step: who sets the states sees to it
  int32_t block_size = 0;  // 1 to DenoiseState::kMaxBlock
  int32_t mask_token_id = 0;
  int32_t page_size = 1;
  BatchRows rows;           // one span more than requests, the other arrays for most_rows
  TensorView report = {};   // uint8 [sizeof(DenoiseReport)]
  TensorView results = {};  // int32 [2, rows, kResultWords]: best, the bits of stats, id, the bits of its logit

  int64_t requests() const { return states.numel() / static_cast<int64_t>(sizeof(DenoiseState)); }
};

inline constexpr int32_t kMaxBlockRequests = 1024;
inline constexpr int32_t kResultWords = 7;

// Error kInvalidArgument when shapes or dtypes disagree, or the rows of the next step might not fit.
void check(const DenoiseStepArgs& args);

}  // namespace headrace
