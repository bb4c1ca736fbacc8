// DMax: every token of a block that is not final is decided anew in each pass, and goes into the next one as a blend of
// its embedding and the mask's, by its probability; or of its place's likeliest tokens, by theirs, and the mask's; or
// as it is with a share of the likeliest beside it. Of LLaDA2 checkpoints that were trained for it. Source: DMax;
// Diffulex, strategy dmax with token merge dmax_topk or iter_smooth_topk.
#pragma once
#include "headrace/decoding/refining_bd.h"

namespace headrace {

class DMax final : public RefiningBD {
 public:
  // Error kInvalidArgument also for a merge weight below 0.
  explicit DMax(const StrategyConfig& config);
  std::string_view name() const override { return "dmax"; }
  // Error kInvalidArgument for a request that accepts by anything but confidence.
  void start(Sequence& sequence) const override;
  std::optional<StepShape> step_shape() const override;
  // Tokens of blocks that are stored go in as they are.
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;

 private:
  // Masks are filled from the left as far as candidates reach the threshold, at least the first. A pass that changes
  // nothing settles the block, as do candidates that are all nearly certain. The sources bound neither the passes nor
  // tokens that change back and forth; here max_edits passes over a block without masks settle it as it is.
  BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                     std::span<const SampledToken> candidates) const override;

  StrategyConfig::Merge merge_;
};

}  // namespace headrace
