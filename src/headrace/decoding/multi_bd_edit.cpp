#include "headrace/decoding/multi_bd_edit.h"

#include <algorithm>

#include "headrace/decoding/reference_loop.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

constexpr float kQualityThreshold = 0.7f, kQualityEditThreshold = 0.5f;  // LLaDA2.1's quality mode

}  // namespace

MultiBDEdit::MultiBDEdit(const StrategyConfig& config)
    : RefiningBD("multi_bd_edit", block_traits("multi_bd_edit", config), config),
      info_(diffusion_info(name(), config)) {
  info_.threshold = kQualityThreshold;
}

// Indices into `candidates` of masks that are filled in this pass.
std::vector<size_t> MultiBDEdit::filled(const DecodingBlock& block, std::span<const SampledToken> candidates,
                                        const DecodingParams& params) const {
  std::vector<size_t> masks;
  std::vector<SampledToken> of_masks;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!block.masked(block.editable_begin() + static_cast<int32_t>(i))) continue;
    masks.push_back(i);
    of_masks.push_back(candidates[i]);
  }
  if (masks.empty()) return {};
  std::vector<size_t> kept = follows_reference(params)
                                 ? kept_by_reference(of_masks, block, params, info_)
                                 : accepted(of_masks, acceptance_rule(params, info_), AtLeast::kOne);
  for (size_t& i : kept) i = masks[i];
  return kept;
}

StepPlan MultiBDEdit::plan(const Sequence& s, int32_t budget) const {
  StepPlan plan = RefiningBD::plan(s, budget);
  if (s.params.decoding.copy_penalty == 0) return plan;
  auto block = s.blocks.begin();
  for (SampleRow& row : plan.sample) {
    while (block->end() <= row.position) ++block;
    if (row.position > block->begin()) row.discouraged_id = s.tokens[static_cast<size_t>(row.position) - 1];
  }
  return plan;
}

BlockVerdict MultiBDEdit::judge(const Sequence& s, const DecodingBlock& block,
                                std::span<const SampledToken> candidates) const {
  using Then = BlockVerdict::Then;
  const DecodingParams& params = s.params.decoding;
  const int32_t max_edits = params.max_edits.value_or(DecodingParams::kMaxEdits);
  const int32_t looks = block.num_steps() + 1, edit_looks = block.complete() ? block.num_edit_steps() + 1 : 0;
  const bool out_of_time = looks >= block.end() - block.begin() + max_edits && !follows_reference(params);
  BlockVerdict verdict;
  if (!out_of_time) verdict.kept = filled(block, candidates, params);
  const bool full = static_cast<int32_t>(verdict.kept.size()) == block.num_masked();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const int32_t p = block.editable_begin() + static_cast<int32_t>(i);
    const bool other = candidates[i].id != s.tokens[static_cast<size_t>(p)];
    if (block.masked(p)) {
      if (out_of_time) verdict.kept.push_back(i);
    } else if (other && candidates[i].confidence > params.edit_threshold.value_or(kQualityEditThreshold)) {
      verdict.kept.push_back(i);
    } else if (params.remask_threshold && candidates[i].confidence < *params.remask_threshold) {
      verdict.remasked.push_back(i);
    }
  }
  std::ranges::sort(verdict.kept);
  const bool quiet = verdict.kept.empty() && verdict.remasked.empty();
  if (follows_reference(params)) {
    if (full && (quiet || edit_looks >= max_edits)) verdict.then = Then::kSettles;
    return verdict;
  }
  if (out_of_time) return {.kept = std::move(verdict.kept), .then = Then::kSettles};
  if (quiet || edit_looks > max_edits) return {.then = Then::kSettles};
  return verdict;
}

}  // namespace headrace
