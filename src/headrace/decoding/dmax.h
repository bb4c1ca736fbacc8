// DMax: every pass decides all tokens of a block again until the block is final. Their input in the next pass is a soft
// embedding: the token and the mask by the token's probability, or the likeliest tokens and the mask, or the token plus
// a share of the likeliest.
// For LLaDA2 checkpoints trained for it. Source: DMax; Diffulex, strategy dmax with token merge dmax_topk or
// iter_smooth_topk.
#pragma once
#include "headrace/decoding/refining_bd.h"

namespace headrace {

class DMax final : public RefiningBD {
 public:
  // Error kInvalidArgument, besides RefiningBD's, for a merge weight below 0, or other than 1 in a mode without weight.
  explicit DMax(const StrategyConfig& config);
  // Error kInvalidArgument for a rule other than confidence.
  void start(Sequence& sequence) const override;
  // Tokens of blocks to be stored use their plain embeddings.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;

 private:
  // Fills masks from the left while candidates reach the threshold, at least the first. Settles the block if a pass
  // changes nothing, or if all candidates are nearly certain. The sources bound neither passes nor oscillating tokens;
  // here max_edits passes without masks settle the block as it is.
  BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                     std::span<const SampledToken> candidates) const override;

  StrategyConfig::Merge merge_;
};

}  // namespace headrace
