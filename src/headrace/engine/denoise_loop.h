// Device-side denoise loop: the end of one denoising step prepares the next on the device, and the host only launches
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
  int32_t rows_each = 2 * block_size;      // tokens of one request in a step without canvases, at most
  int32_t vocab = 0;                       // ids below this may be sampled; the mask token never is
  int32_t page_size = 1;                   // tokens
  std::vector<int32_t> sizes;              // captured sizes, in tokens, of steps without canvases, ascending
  int32_t canvas_len = 0;                  // tokens of a canvas at most; 0: the strategy has no canvases
  std::vector<int32_t> canvas_sizes = {};  // captured sizes, in tokens, of steps with canvases

  // Tokens that the loop keeps per request: the block before the open one and the open one, or the canvas.
  int32_t tokens_each() const { return std::max(2 * block_size, canvas_len); }
  // Tokens of a step at most. For canvases load() enforces it.
  int32_t most_rows() const { return canvas_len > 0 ? canvas_sizes.back() : max_requests * rows_each; }
  // The lower bound for the size of the largest graph.
  int64_t least_size() const { return canvas_len > 0 ? 1 : int64_t{max_requests} * rows_each; }
};

// Keeps the requests' open blocks in device memory and reports each step's result to the host. Not thread-safe.
class DenoiseLoop {
 public:
  // `rows`: the arrays that the graphs read their batches from. They outlive the loop, as do `ops` and `runtime`; none
  // is owned. Error kInvalidArgument for more requests or larger blocks than denoise_step supports, or for too small
  // sizes.
  DenoiseLoop(const OpSet& ops, const OpContext& context, DeviceRuntime& runtime, const BlockLoopConfig& config,
              const BatchRows& rows);
  DenoiseLoop(const DenoiseLoop&) = delete;
  DenoiseLoop& operator=(const DenoiseLoop&) = delete;
  ~DenoiseLoop();

  // Queues (or captures) the end of a step behind the model's forward: token_confidence and sample_tokens over
  // `logits`, float32 [rows, vocab], then denoise_step. Its results are unused until load().
  void end_step(const TensorView& logits);

  // Returns true if every later step of these requests fits a graph.
  bool holds(std::span<const DenoiseState> states) const;
  // Copies the requests' states and their tokens, int32 [states, tokens_each], to the device, in the order of the
  // tokens in the step that is queued next. Waits for steps still in flight. Error kInvalidArgument if holds() is
  // false.
  void load(std::span<const DenoiseState> states, std::span<const int32_t> tokens);
  // Counts a launched step. If several are launched before wait(), decided() is undefined.
  void started() { ++in_flight_; }

  // Waits for the last launched step and returns its report, with which the next step can be launched at once. Polls
  // mapped pinned memory that the device writes; after some tens of milliseconds it synchronizes, so that device errors
  // surface. Error kCuda.
  DenoiseReport wait();
  // Returns the tokens decided by the step that wait() returned. Stays valid while the next step runs.
  ChosenRows decided() const;

  const BlockLoopConfig& config() const { return config_; }

 private:
  int32_t* results_of(int32_t step) const;
  // One entry per row of logits of `states`; padded with unused entries.
  std::vector<TokenDraw> draws_of(std::span<const DenoiseState> states) const;

  const OpSet& ops_;
  OpContext context_;
  DeviceRuntime& runtime_;
  BlockLoopConfig config_;
  BatchRows rows_;
  Tensor states_, tokens_, counter_, sizes_;  // arguments of denoise_step (DenoiseStepArgs)
  Tensor best_, stats_, ids_, logits_, draws_;
  std::vector<DenoiseState> all_states_;  // host copy: requests that run, then unused entries
  void* shared_ = nullptr;                // report, then results
  size_t shared_bytes_ = 0;
  int32_t steps_ = 0;         // steps waited for
  int32_t logits_rows_ = 0;   // rows of logits of the step in flight
  int32_t decided_rows_ = 0;  // rows decided by the step last waited for
  int32_t in_flight_ = 0;     // steps launched and not waited for
};

}  // namespace headrace
