// Autoregressive decoding, one token per step: the strategy of every causal language model.
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class Autoregressive final : public DecodingStrategy {
 public:
  Autoregressive()
      : DecodingStrategy("autoregressive", {.runs_tokens_once = true, .text_block = 1, .step = StepShape{}}) {}
  void start(Sequence& sequence) const override { sequence.num_final = sequence.prompt_len; }
  // Runs the uncached part of the prompt in chunks, then the newest token alone. Samples only the last token of a
  // complete prompt, or the newest token.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;
};

}  // namespace headrace
