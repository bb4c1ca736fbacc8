#include "headrace/decoding/reference_loop.h"

#include "headrace/core/error.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

using Loop = DiffusionInfo::Loop;

// Distributes `masks` positions evenly over `steps` passes and returns the share of pass `step`. The first passes take
// the remainder.
int32_t even_share(int32_t masks, int32_t steps, int32_t step) {
  return step < steps ? masks / steps + (step < masks % steps ? 1 : 0) : 0;
}

// Returns the share of the remaining masks that step `step` decides, for linear time from 1 to 0.001. The last step
// decides all.
double timestep_chance(int32_t steps, int32_t step) {
  if (step >= steps - 1) return 1;
  const auto time = [steps](int32_t i) { return 1 - 0.999 * i / steps; };
  return 1 - time(step + 1) / time(step);
}

int32_t timestep_share(int32_t masks, int32_t steps, int32_t step) {
  return static_cast<int32_t>(masks * timestep_chance(steps, step));
}

// Dream's `origin`: each mask takes its token independently with the step's probability, so every step runs a pass.
std::vector<size_t> taken_by_chance(std::span<const SampledToken> candidates, double chance) {
  std::vector<size_t> taken;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].order < chance) taken.push_back(i);
  }
  return taken;
}

// Returns the share of the block's next pass; steps with an empty share run no pass.
int32_t share(const DecodingBlock& block, int32_t steps, Loop loop) {
  int32_t masks = block.num_editable(), passes = 0;
  for (int32_t step = 0; step < steps; ++step) {
    const int32_t n =
        loop == Loop::kTimesteps ? timestep_share(masks, steps, step) : even_share(block.num_editable(), steps, step);
    if (n > 0 && passes++ == block.num_steps()) return n;
    masks -= n;
  }
  return 1;
}

}  // namespace

std::vector<size_t> kept_by_reference(std::span<const SampledToken> candidates, const DecodingBlock& block,
                                      const DecodingParams& params, const DiffusionInfo& info) {
  const AcceptanceRule rule = acceptance_rule(params, info);
  const int32_t steps = params.steps.value_or(block.num_editable());
  if (info.loop == Loop::kTimesteps && rule.rule == DecodingParams::Rule::kRandom) {
    return taken_by_chance(candidates, timestep_chance(steps, block.num_steps()));
  }
  const bool parallel = info.loop == Loop::kEven && params.threshold.has_value();
  const int32_t n = parallel ? 1 : share(block, steps, info.loop);
  if (parallel || info.loop == Loop::kDynamic) {
    std::vector<size_t> passing = accepted(candidates, rule, AtLeast::kNone);
    if (passing.size() >= static_cast<size_t>(n)) return passing;
  }
  return best_of(candidates, rule, n);
}

ScoresOf scores_of(const SamplingParams& p, const DiffusionInfo& info) {
  const LoopScores scores = info.reference.scores;
  const bool draws = p.temperature > 0, filters = p.top_k > 0 || p.top_p < 1 || p.min_p > 0;
  if (!follows_reference(p.decoding) || scores == LoopScores::kOfModel) return ScoresOf::kModel;
  if (!draws && scores == LoopScores::kOfDraws) return ScoresOf::kModel;
  return filters || (draws && p.temperature != 1) ? ScoresOf::kFiltered : ScoresOf::kModel;
}

BlockCache block_cache_of(const DecodingParams& params, std::optional<BlockCache> asked, const DiffusionInfo& info) {
  return asked.value_or(follows_reference(params) ? info.reference.block_cache : BlockCache::kYes);
}

void check_reference(const DecodingParams& params, const DiffusionInfo& info) {
  if (!follows_reference(params)) return;
  HR_REQUIRE(params.order_temperature == 0 || rule_of(params, info) != DecodingParams::Rule::kRandom,
             ErrorCode::kInvalidArgument, "order_temperature is ", params.order_temperature,
             ", expected 0 with the schedule 'reference' of this model, whose rule is 'random'");
  if (!params.threshold) return;
  HR_REQUIRE(
      info.loop != Loop::kTimesteps, ErrorCode::kInvalidArgument, "threshold is ", *params.threshold,
      ", expected none with the schedule 'reference' of this model, which keeps a share of the masks in each step");
  HR_REQUIRE(info.loop != Loop::kEven || !params.steps, ErrorCode::kInvalidArgument, "steps is ",
             params.steps.value_or(0),
             ", expected none beside a threshold with the schedule 'reference' of this model");
}

}  // namespace headrace
