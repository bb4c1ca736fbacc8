// Fast-dLLM v2: a block is filled sub-block by sub-block from left to right, by three kinds of passes.
//
//   init    the whole block, behind the cache; decides in the current sub-block
//   refine  the current sub-block alone, which sees what the last init pass left of the others: the block cache
//   commit  the whole block, clean, for its K and V; its last row gives the next block's first token
//
// A sub-block whose first token is undecided needs an init pass, since the row before it decides that one; every other
// pass refines. Without the block cache those are init passes too: exact, and with more rows.
// Source: Wu et al. 2025, Fast-dLLM v2; Diffulex, strategy fast_dllm_v2.
#pragma once
#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

class FastDLLMv2 final : public DecodingStrategy {
 public:
  // Error kInvalidArgument when neither the model nor the configuration names a mask token and a block size, when the
  // block is no multiple of its sub-blocks, or when the model's logits are no next tokens'.
  explicit FastDLLMv2(const StrategyConfig& config);

  std::string_view name() const override { return "fast_dllm_v2"; }
  std::optional<int32_t> reusable_multiple() const override { return info_.block_size; }
  void start(Sequence& sequence) const override;
  int32_t min_budget(const Sequence&) const override { return info_.block_size; }
  // To the end of a block: the block cache holds all of it.
  int32_t max_cached(const Sequence& sequence) const override;
  // Parts of blocks and whole ones.
  std::optional<StepShape> step_shape() const override;
  // As MultiBD's.
  std::optional<BlockShape> device_blocks() const override;
  std::string host_because() const override;
  std::optional<DenoiseState> denoise_state(const Sequence& sequence) const override;
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;
  // Keeps the candidates that pass the request's rule, or else the best.
  void commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const override;

 private:
  void open_block(Sequence& sequence, int32_t begin) const;
  bool caches(const Sequence& sequence) const;  // reads the block cache
  // Of exact passes too, unless all are exact: a device's attention takes keys fastest from the pool.
  bool stores_all() const { return block_cache_ != BlockCache::kNo; }

  DiffusionInfo info_;
  std::optional<BlockCache> block_cache_;
};

}  // namespace headrace
