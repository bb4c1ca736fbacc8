// Full attention with a stale KV cache. The first pass of a block runs the whole canvas and stores the K and V of
// everything outside the block; later passes run the block alone and read those. An approximation with far fewer
// tokens.
// For next-token models the first pass decides the block's first position alone, because later passes lack the row
// before it. For LLaDA and Dream.
// Source: Wu et al. 2025, Fast-dLLM (version 1), DualCache.
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class DualCache final : public DecodingStrategy {
 public:
  // Error kInvalidArgument when neither the model nor the configuration names a mask token and a block size.
  explicit DualCache(const StrategyConfig& config);

  void start(Sequence& sequence) const override;
  // Between blocks: within one, steps read K and V of the tokens that its first step saw.
  bool may_preempt(const Sequence& sequence) const override;
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the candidates that pass the request's rule, at least the best. Decides nothing after an end token.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  DiffusionInfo info_;
};

}  // namespace headrace
