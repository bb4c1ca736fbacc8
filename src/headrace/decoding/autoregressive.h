// Autoregressive decoding, one token per step: the strategy of every causal language model.
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class Autoregressive final : public DecodingStrategy {
 public:
  std::string_view name() const override { return "autoregressive"; }
  std::optional<int32_t> reusable_multiple() const override { return 1; }
  bool runs_rows_once() const override { return true; }
  void start(Sequence& sequence) const override { sequence.num_final = sequence.prompt_len; }
  int32_t min_budget(const Sequence&) const override { return 1; }
  std::optional<StepShape> step_shape() const override { return StepShape{}; }
  // Runs the uncached part of the prompt in chunks, then the newest token alone. Samples only the last token of a
  // complete prompt, or the newest token.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;
};

}  // namespace headrace
