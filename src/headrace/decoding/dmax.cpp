#include "headrace/decoding/dmax.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/decoding/reference_loop.h"

namespace headrace {
namespace {

constexpr float kFillThreshold = 0.5f, kNearlyCertain = 0.9f;

StrategyTraits merging_traits(const StrategyConfig& config) {
  StrategyTraits traits = block_traits("dmax", config);
  traits.step->inputs = StepShape::Inputs::kMixed;
  return traits;
}

}  // namespace

DMax::DMax(const StrategyConfig& config) : RefiningBD("dmax", merging_traits(config), config), merge_(config.merge) {
  HR_REQUIRE(merge_.weight >= 0, ErrorCode::kInvalidArgument, "strategy 'dmax': the merge weight is ", merge_.weight,
             ", expected 0 or more");
  HR_REQUIRE(merge_.mode == StrategyConfig::Merge::Mode::kSmooth || merge_.weight == 1, ErrorCode::kInvalidArgument,
             "strategy 'dmax': the merge weight is ", merge_.weight, ", which iter_smooth_topk alone has");
}

void DMax::start(Sequence& s) const {
  const auto rule = s.params.decoding.rule;
  HR_REQUIRE(!rule || rule == DecodingParams::Rule::kConfidence, ErrorCode::kInvalidArgument,
             "strategy 'dmax': tokens are accepted by confidence alone; no other rule is built");
  RefiningBD::start(s);
}

StepPlan DMax::plan(const Sequence& s, int32_t budget) const {
  StepPlan plan = RefiningBD::plan(s, budget);
  const bool smooth = merge_.mode == StrategyConfig::Merge::Mode::kSmooth;
  const auto several = static_cast<size_t>(s.params.decoding.merge_candidates);
  if (several > 1 || smooth) plan.num_candidates = s.params.decoding.merge_candidates;
  if (merge_.mode != StrategyConfig::Merge::Mode::kTopK) plan.soft_length = TokenMerge::Length::kAsSummed;
  auto block = s.blocks.begin();
  for (const SampleRow& row : plan.sample) {
    while (block->end() <= row.position) ++block;
    if (block->masked(row.position)) continue;
    const auto at = static_cast<size_t>(row.position - s.prompt_len);
    if (several == 1 && !smooth) {
      plan.soft.push_back({row.row, {{s.chosen[at].id, std::clamp(s.chosen[at].confidence, 0.0f, 1.0f)}}});
      continue;
    }
    const TokenShare* first = s.candidates.data() + at * several;
    SoftRow& soft = plan.soft.emplace_back(SoftRow{row.row, {first, first + several}});
    if (!smooth) continue;
    for (TokenShare& part : soft.parts) part.probability *= merge_.weight;
    soft.parts.push_back({s.tokens[static_cast<size_t>(row.position)], 1});
  }
  return plan;
}

BlockVerdict DMax::judge(const Sequence& s, const DecodingBlock& block,
                         std::span<const SampledToken> candidates) const {
  const DecodingParams& params = s.params.decoding;
  if (block.complete() && block.num_edit_steps() >= params.max_edits.value_or(DecodingParams::kMaxEdits))
    return {.then = BlockVerdict::Then::kSettles};
  std::vector<size_t> kept;
  bool filling = true, any_mask = false, same = true;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t p = block.editable_begin() + static_cast<int32_t>(i);
    if (block.masked(p)) {
      filling = filling && (!any_mask || candidates[i].confidence >= params.threshold.value_or(kFillThreshold));
      any_mask = true;
      same = false;
      if (!filling) continue;
    }
    same = same && candidates[i].id == s.tokens[static_cast<size_t>(p)];
    kept.push_back(i);
  }
  const bool certain = std::ranges::all_of(candidates, [](const auto& c) { return c.confidence >= kNearlyCertain; });
  return {.kept = std::move(kept),
          .then = same || certain ? BlockVerdict::Then::kSettles : BlockVerdict::Then::kGoesOn};
}

}  // namespace headrace
