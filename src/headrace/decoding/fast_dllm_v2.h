// Fast-dLLM v2: fills a block sub-block by sub-block from left to right, by three kinds of passes.
//
//   init    the whole block, behind the cache; decides in the current sub-block
//   refine  the current sub-block alone; it reads the other sub-blocks' K and V of the last init pass (the block cache)
//   commit  the whole block, clean, to store its K and V; its last row predicts the next block's first token
//
// A sub-block whose first token is undecided needs an init pass, because the row before it decides that token; every
// other pass refines. Without the block cache every refine pass is an init pass: exact, but with more tokens.
// Source: Wu et al. 2025, Fast-dLLM v2; Diffulex, strategy fast_dllm_v2.
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class FastDLLMv2 final : public DecodingStrategy {
 public:
  // Error kInvalidArgument if neither the model nor the configuration names a mask token and a block size, if the block
  // is no multiple of its sub-blocks, or if the model's logits do not predict the next token.
  explicit FastDLLMv2(const StrategyConfig& config);

  void start(Sequence& sequence) const override;
  // Between blocks with the block cache, whose K and V are of the tokens that the block's first step saw.
  bool may_preempt(const Sequence& sequence) const override;
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the candidates that pass the request's rule, at least the best.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  void open_block(Sequence& sequence, int32_t begin) const;
  bool caches(const Sequence& sequence) const;  // true if the request uses the block cache
  bool stores_all() const { return traits().step->stores == StepShape::Stores::kAll; }

  DiffusionInfo info_;
  std::optional<BlockCache> block_cache_;
};

}  // namespace headrace
