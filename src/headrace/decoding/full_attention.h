// Full attention over prompt and output. The output is a canvas of masks from the first pass on, and every pass runs
// all of it. K and V of every position change with every token, so no pass reads another's. Each pass still stores
// them, because attention on a device reads keys fastest from the pool. Blocks, counted from the prompt's end, are
// decided one after the other. For LLaDA and Dream.
// Source: Nie et al. 2025 (LLaDA), Ye et al. 2025 (Dream); several tokens per pass as Wu et al. 2025 (Fast-dLLM).
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class FullAttention final : public DecodingStrategy {
 public:
  // Error kInvalidArgument when neither the model nor the configuration names a mask token and a block size.
  explicit FullAttention(const StrategyConfig& config);

  void start(Sequence& sequence) const override;
  // Runs the whole canvas and samples the undecided positions of the first unfinished block. A guided request runs the
  // canvas a second time, with its prompt masked and nothing stored.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the candidates that pass the request's rule, at least the best. Decides nothing after an end token, but the
  // canvas keeps its length: the model sees how much room there was.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  DiffusionInfo info_;
};

}  // namespace headrace
