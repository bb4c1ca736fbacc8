#include "headrace/decoding/multi_bd.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

// Returns the rows that decide masked positions; `first` is the position of row 0.
std::vector<SampleRow> rows_of_masks(const Sequence& s, int32_t first, int32_t shift) {
  std::vector<SampleRow> rows;
  for (const DecodingBlock& block : s.blocks) {
    for (const int32_t p : block.masked_positions()) rows.push_back({p - shift - first, p, block.num_steps()});
  }
  return rows;
}

// Returns the end of the useful rows. Complete blocks after the last one with masks wait for it, so running them
// changes nothing.
int32_t useful_end(const Sequence& s, int32_t stored) {
  int32_t end = stored;
  for (const DecodingBlock& block : s.blocks) end = block.complete() ? end : block.end();
  return end;
}

// The least number of candidates that a pass keeps in a block with guaranteed progress: with max_passes, the masks
// spread evenly over the passes that are left.
int32_t share_of_pass(const DecodingParams& params, const DecodingBlock& block) {
  if (!params.max_passes) return 1;
  const int32_t left = std::max(1, *params.max_passes - block.num_steps());
  return (block.num_masked() + left - 1) / left;
}

}  // namespace

MultiBD::MultiBD(const StrategyConfig& config)
    : DecodingStrategy("multi_bd", block_traits("multi_bd", config)), info_(diffusion_info(name(), config)) {
  buffer_ = {info_.block_size, config.num_blocks, *info_.mask_token_id};
}

StepPlan MultiBD::plan(const Sequence& s, int32_t budget) const {
  const int32_t stored = storable_end(s), shift = info_.logits_of == DiffusionInfo::LogitsOf::kBefore ? 1 : 0;
  // The row that decides position num_cached is cached already: it runs again, without a store.
  const bool repeats =
      shift == 1 && stored == s.num_cached && s.num_cached > 0 && s.blocks.front().masked(s.num_cached);
  const int32_t begin = s.num_cached - (repeats ? 1 : 0);
  return buffer_.plan(s, {begin, useful_end(s, stored)}, rows_of_masks(s, begin, shift), budget);
}

void MultiBD::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  const AcceptanceRule rule = acceptance_rule(s.params.decoding, info_);
  const bool always = info_.progress == DiffusionInfo::Progress::kAlways;
  auto next = plan.sample.begin();
  float progress_before = 1;
  for (DecodingBlock& block : s.blocks) {
    const auto first = next;
    while (next != plan.sample.end() && next->position < block.end()) ++next;
    const float progress = block.progress();
    if (first != next) {
      const auto candidates =
          sampled.subspan(static_cast<size_t>(first - plan.sample.begin()), static_cast<size_t>(next - first));
      const bool sure = always || progress_before >= s.params.decoding.semi_complete;
      const AtLeast least = sure ? AtLeast::kOne : AtLeast::kNone;
      auto kept = follows_reference(s.params.decoding) ? kept_by_reference(candidates, block, s.params.decoding, info_)
                                                       : accepted(candidates, rule, least);
      const int32_t share = sure ? share_of_pass(s.params.decoding, block) : 0;
      if (share > static_cast<int32_t>(kept.size())) kept = best_of(candidates, rule, share);
      block.count_step();
      for (const size_t i : kept) {
        buffer_.decide(s, block, first[static_cast<std::ptrdiff_t>(i)].position, candidates[i]);
      }
    }
    progress_before = progress;
  }
  buffer_.advance(s, plan);
}

}  // namespace headrace
