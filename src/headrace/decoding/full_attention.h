// Full attention over prompt and output: the output stands as a canvas of masks from the first pass on, every pass runs
// all of it, and no pass reads what another one stored, because every position's K and V change with every token. Each
// stores its own, since a device's attention takes keys fastest from the pool. Blocks, counted from the prompt's end,
// are decided one after the other. Of LLaDA and Dream.
// Source: Nie et al. 2025 (LLaDA), Ye et al. 2025 (Dream); several tokens per pass as Wu et al. 2025 (Fast-dLLM).
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class FullAttention final : public DecodingStrategy {
 public:
  // Error kInvalidArgument when neither the model nor the configuration names a mask token and a block size.
  explicit FullAttention(const StrategyConfig& config);

  std::string_view name() const override { return "full_attention"; }
  void start(Sequence& sequence) const override;
  int32_t min_budget(const Sequence& sequence) const override;
  int32_t max_cached(const Sequence& sequence) const override { return sequence.num_tokens(); }
  std::optional<CanvasShape> canvas_shape() const override;
  // The whole canvas; the undecided positions of the first unfinished block are sampled. Of a guided request the canvas
  // runs a second time, with its prompt masked and nothing stored.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the candidates that pass the request's rule, or else the best. Nothing behind an end token is decided, but
  // the canvas keeps its length: the model sees how much room there was.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;
  // With every rule but entropy_bound and random.
  std::optional<BlockShape> device_blocks() const override;
  std::string host_because() const override;
  std::optional<DenoiseState> denoise_state(const Sequence& sequence) const override;

 private:
  DiffusionInfo info_;
};

}  // namespace headrace
