// A canvas of noise becomes text at once, step by step; the finished one is encoded as text, and the next follows. Of
// DiffusionGemma. N steps and one causal pass a canvas.
// Source: DiffusionGemma (Google DeepMind); Ben-Hamu et al. 2025, entropy-bounded unmasking.
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

// A request's threshold is the entropy bound, and its `steps` the most steps of a canvas, where it states them; both
// schedules are the published loop.
class CanvasStrategy final : public DecodingStrategy {
 public:
  // Error kInvalidArgument for a model that is not trained on canvases.
  explicit CanvasStrategy(const StrategyConfig& config);

  std::string_view name() const override { return "diffusion_gemma"; }
  std::optional<int32_t> reusable_multiple() const override { return 1; }
  void start(Sequence& sequence) const override;
  int32_t min_budget(const Sequence&) const override { return info_.block_size; }
  // A whole canvas.
  std::optional<SegmentShape> segment_shape() const override;
  // Text that is not cached yet, causally, in chunks of any size; then the whole canvas, every row of it read. Also
  // rows behind max_tokens run and are read, as the model knows whole canvases only.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Tokens whose entropies fit the bound stay in the canvas, noise takes the other places; nothing is frozen. The last
  // step's likeliest tokens are the text.
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
