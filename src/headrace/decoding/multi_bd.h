// Block-causal diffusion: up to num_blocks consecutive blocks are denoised at the same time, each seeing those before
// it. Of SDAR, LLaDA2, Stable-DiffCoder and every model that was trained block-causally.
// Source: Diffulex, strategy multi_bd.
#pragma once
#include "headrace/decoding/block_buffer.h"

namespace headrace {

class MultiBD final : public DecodingStrategy {
 public:
  // Error kInvalidArgument when neither the model nor the configuration names a mask token and a block size.
  explicit MultiBD(const StrategyConfig& config);

  std::string_view name() const override { return "multi_bd"; }
  std::optional<int32_t> reusable_multiple() const override { return info_.block_size; }
  void start(Sequence& sequence) const override { buffer_.start(sequence); }
  int32_t min_budget(const Sequence& sequence) const override { return buffer_.most_rows(sequence); }
  std::optional<StepShape> step_shape() const override { return buffer_.step_shape(); }
  // Everything from the end of the cache on: blocks that are complete are stored by the same pass that denoises those
  // behind them. A prompt that exceeds the budget runs in chunks of whole blocks first.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // In each block, keeps the candidates that pass the request's rule; at least the best in the blocks that
  // DiffusionInfo::progress says.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;
  // Of one block at a time that reads its own positions' logits, with every rule but entropy_bound and
  // random.
  std::optional<BlockShape> device_blocks() const override;
  std::string host_because() const override;
  std::optional<DenoiseState> denoise_state(const Sequence& sequence) const override;

 private:
  DiffusionInfo info_;
  BlockBuffer buffer_;
};

}  // namespace headrace
