// D2F: the prompt attends bidirectionally; after it several blocks are denoised at a time, each attending to all
// earlier tokens. For Dream, DiffuCoder and LLaDA with a D2F adapter.
// Source: Wang et al. 2025, Discrete Diffusion Forcing; Diffulex, strategy d2f.
#pragma once
#include "headrace/decoding/multi_bd.h"

namespace headrace {

class D2F final : public DecodingStrategy {
 public:
  // Errors as MultiBD. A probability must be above the threshold, whatever comparison the model's own decoding uses.
  explicit D2F(const StrategyConfig& config);

  void start(Sequence& sequence) const override { blocks_.start(sequence); }
  void restart(Sequence& sequence) const override { blocks_.restart(sequence); }
  // The first pass runs the whole prompt: its keys depend on all of it, so it is never chunked.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override {
    blocks_.commit(sequence, plan, sampled);
  }

 private:
  MultiBD blocks_;
};

}  // namespace headrace
