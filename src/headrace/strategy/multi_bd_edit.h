// multi_bd with edits: each pass fills masks and replaces tokens of the blocks that are not final. Of LLaDA2.1.
// Source: LLaDA2.1 (inclusionAI), joint threshold decoding.
#pragma once
#include "headrace/strategy/refining_bd.h"

namespace headrace {

class MultiBDEdit final : public RefiningBD {
 public:
  explicit MultiBDEdit(const StrategyConfig& config) : RefiningBD("multi_bd_edit", config) {}
  std::string_view name() const override { return "multi_bd_edit"; }
  StepPlan plan(const Sequence& sequence, int32_t budget) const override;

 private:
  // Masks take candidates above the threshold, or the best; decided positions take another token above edit_threshold.
  // A pass that changes nothing settles the block, as does running out of passes.
  BlockVerdict judge(const Sequence& sequence, const DecodingBlock& block,
                     std::span<const SampledToken> candidates) const override;
};

}  // namespace headrace
