// multi_bd with edits: each pass fills masks and replaces tokens in the blocks that are not final. For LLaDA2.1.
// Source: LLaDA2.1 (inclusionAI), joint threshold decoding.
#pragma once
#include "headrace/decoding/refining_bd.h"

namespace headrace {

class MultiBDEdit final : public RefiningBD {
 public:
  explicit MultiBDEdit(const StrategyConfig& config);
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;

 private:
  // Fills masks with candidates above the threshold, at least the best; replaces decided tokens by others above
  // edit_threshold. Masks a position again if no token of it reaches remask_threshold (headrace's own rule). Settles
  // the block if a pass changes nothing or the passes run out.
  // Schedule 'reference': masks take the best of the pass's share if fewer pass, and max_edits passes without masks
  // settle the block.
  BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                     std::span<const SampledToken> candidates) const override;
  std::vector<size_t> filled(const DecodingBlock& block, std::span<const SampledToken> candidates,
                             const DecodingParams& params) const;

  DiffusionInfo info_;
};

}  // namespace headrace
