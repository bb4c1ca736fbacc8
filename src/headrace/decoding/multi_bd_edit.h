// multi_bd with edits: each pass fills masks and replaces tokens of the blocks that are not final. Of LLaDA2.1.
// Source: LLaDA2.1 (inclusionAI), joint threshold decoding.
#pragma once
#include "headrace/decoding/refining_bd.h"

namespace headrace {

class MultiBDEdit final : public RefiningBD {
 public:
  explicit MultiBDEdit(const StrategyConfig& config);
  std::string_view name() const override { return "multi_bd_edit"; }
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;

 private:
  // Masks take candidates above the threshold, or the best; decided positions take another token above edit_threshold.
  // A place all of whose tokens are less likely than remask_threshold becomes a mask again, which is headrace's own. A
  // pass that changes nothing settles the block, as does running out of passes. In the published loop masks take the
  // best of the pass's share where fewer pass, and max_edits passes over a block without masks settle it.
  BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                     std::span<const SampledToken> candidates) const override;
  std::vector<size_t> filled(const DecodingBlock& block, std::span<const SampledToken> candidates,
                             const DecodingParams& params) const;

  DiffusionInfo info_;
};

}  // namespace headrace
