// Canvas decoding of DiffusionGemma: a canvas of noise is denoised step by step, then encoded causally as text, and the
// next canvas follows. N steps and one causal pass per canvas.
// Source: DiffusionGemma (Google DeepMind); Ben-Hamu et al. 2025, entropy-bounded unmasking.
#pragma once
#include "headrace/decoding/block_buffer.h"

namespace headrace {

// A request's `threshold` is the entropy bound and its `steps` the maximal steps of a canvas, if set. Both schedules
// are the published loop.
class CanvasStrategy final : public DecodingStrategy {
 public:
  // Error kInvalidArgument for a model not trained on canvases.
  explicit CanvasStrategy(const StrategyConfig& config);

  void start(Sequence& sequence) const override;
  // The logits of the canvas's last step stay with the sequence.
  void restart(Sequence& sequence) const override { BlockBuffer::restart(sequence); }
  // Runs uncached text causally, in chunks of any size, then the whole canvas with every row sampled. Rows beyond
  // max_tokens run, too, because the model supports only whole canvases.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the tokens whose entropies fit the bound and puts noise in all other positions; nothing is frozen. The
  // likeliest tokens of the last step become the text.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  void open(Sequence& sequence) const;
  int32_t max_steps(const Sequence& sequence) const;
  bool is_done(const Sequence& sequence, DecodingBlock& canvas, std::span<const SampledToken> sampled) const;
  void finish(Sequence& sequence, DecodingBlock& canvas, std::span<const SampledToken> sampled) const;
  void renoise(Sequence& sequence, const DecodingBlock& canvas, std::span<const SampledToken> sampled) const;

  DiffusionInfo info_;
};

}  // namespace headrace
