// Denoise steps that feed each other where the model runs: the end of one lays out the next, and the host only starts
// it.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

#include "headrace/ops/op_set.h"
#include "headrace/sampling/sampler.h"

namespace headrace {

struct BlockLoopConfig {
  int32_t max_requests = 1;
  int32_t block_size = 1, mask_token_id = 0;
  int32_t rows_each = 2 * block_size;      // of a request in a step without canvases, at most
  int32_t vocab = 0;                       // ids that may be chosen; the mask token never is
  int32_t page_size = 1;                   // tokens
  std::vector<int32_t> sizes;              // rows of a step without canvases that graphs are recorded for, ascending
  int32_t canvas_len = 0;                  // tokens of a canvas at most; 0: the strategy has none
  std::vector<int32_t> canvas_sizes = {};  // likewise of any step

  // Of each request: the block before the open one, then that; or its canvas.
  int32_t tokens_each() const { return std::max(2 * block_size, canvas_len); }
  // Rows of any step at most: of canvases, load() sees to it.
  int32_t most_rows() const { return canvas_len > 0 ? canvas_sizes.back() : max_requests * rows_each; }
  // The smallest that the largest graph may be.
  int64_t least_size() const { return canvas_len > 0 ? 1 : int64_t{max_requests} * rows_each; }
};

// The requests' blocks in a device's memory, and how the host hears of them. Not thread-safe.
class DenoiseLoop {
 public:
  // `rows`: the memory that graphs read their batches from; it outlives the loop, and so do ops and runtime, which are
  // not owned. Error kInvalidArgument for more requests or larger blocks than denoise_step takes, or sizes too small.
  DenoiseLoop(const OpSet& ops, const OpContext& context, DeviceRuntime& runtime, const BlockLoopConfig& config,
              const BatchRows& rows);
  DenoiseLoop(const DenoiseLoop&) = delete;
  DenoiseLoop& operator=(const DenoiseLoop&) = delete;
  ~DenoiseLoop();

  // Queues, or records, what follows a model's forward: token_confidence and sample_tokens of its logits, then
  // denoise_step. While nothing was loaded it does nothing that anybody reads.
  void end_step(const TensorView& logits);

  // Whether steps of these requests always fit a graph.
  bool holds(std::span<const DenoiseState> states) const;
  // Copies the requests' states, which fit, in the order of their rows in the step that is queued next, and their
  // tokens, int32 [states, tokens_each]. A step before that nobody has waited for is over.
  void load(std::span<const DenoiseState> states, std::span<const int32_t> tokens);
  // A step was queued. Behind several that nobody has waited for, decided() says nothing.
  void started() { ++in_flight_; }

  // What comes behind the last step that was queued, as soon as that is over: the next can be started before anything
  // else is done. Polls memory that the device writes; the device is asked only when it takes long, so that its errors
  // come out. Error kCuda.
  DenoiseReport wait();
  // What the step decided that was waited for last, also while the next one runs.
  ChosenRows decided() const;

  const BlockLoopConfig& config() const { return config_; }

 private:
  int32_t* results_of(int32_t step) const;
  // Those of the rows of logits that states have first, then of nobody.
  std::vector<TokenDraw> draws_of(std::span<const DenoiseState> states) const;

  const OpSet& ops_;
  OpContext context_;
  DeviceRuntime& runtime_;
  BlockLoopConfig config_;
  BatchRows rows_;
  Tensor states_, tokens_, counter_, sizes_;  // as DenoiseStepArgs has them
  Tensor best_, stats_, ids_, logits_, draws_;
  std::vector<DenoiseState> all_states_;  // staging: those that run, then those that do not
  void* shared_ = nullptr;                // report, then results
  size_t shared_bytes_ = 0;
  int32_t steps_ = 0;         // that were waited for
  int32_t logits_rows_ = 0;   // of the step in flight
  int32_t decided_rows_ = 0;  // of the last that was waited for
  int32_t in_flight_ = 0;     // steps: one, or more where it is known what they will report
};

}  // namespace headrace
