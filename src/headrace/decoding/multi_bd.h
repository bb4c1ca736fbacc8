// Block-causal diffusion: denoises up to num_blocks consecutive blocks at the same time, each attending to those before
// it. For SDAR, LLaDA2, Stable-DiffCoder and every model trained block-causally.
// Source: Diffulex, strategy multi_bd.
#pragma once
#include "headrace/decoding/block_buffer.h"

namespace headrace {

class MultiBD final : public DecodingStrategy {
 public:
  // Error kInvalidArgument when neither the model nor the configuration names a mask token and a block size.
  explicit MultiBD(const StrategyConfig& config);

  void start(Sequence& sequence) const override { buffer_.start(sequence); }
  void restart(Sequence& sequence) const override { BlockBuffer::restart(sequence); }
  // Runs everything after the cache: the pass that stores complete blocks also denoises the blocks after them. A prompt
  // that exceeds the budget first runs in chunks of whole blocks.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the candidates of each block that pass the request's rule, and at least the best in the blocks named by
  // DiffusionInfo::progress.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  DiffusionInfo info_;
  BlockBuffer buffer_;
};

}  // namespace headrace
