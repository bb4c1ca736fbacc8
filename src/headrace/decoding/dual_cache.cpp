#include "headrace/decoding/dual_cache.h"

#include <algorithm>

#include "headrace/decoding/block_buffer.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {
namespace {

// Runs and stores the whole canvas.
PlannedSpan whole(const Sequence& s) {
  return {.keys = {.q_len = s.num_tokens(), .kind = KeySpan::Kind::kFull}, .store = {0, s.num_tokens()}};
}

// Runs the block alone. The hole hides its cached K and V, so that it attends to its own tokens instead.
PlannedSpan alone(const Sequence& s, const DecodingBlock& block) {
  return {.keys = {.q_len = block.end() - block.begin(),
                   .ctx_len = s.num_tokens(),
                   .phys0 = block.begin(),
                   .hole_begin = block.begin(),
                   .hole_end = block.end(),
                   .kind = KeySpan::Kind::kFull},
          .store = {}};
}

StrategyTraits dual_cache_traits(int32_t block_size) {
  return {.step = StepShape{.rows = block_size,
                            .most_rows = block_size,
                            .most_samples = block_size,
                            .stores = StepShape::Stores::kSome},
          .canvas = CanvasShape{.samples = block_size}};
}

}  // namespace

DualCache::DualCache(const StrategyConfig& config)
    : DecodingStrategy("dual_cache", dual_cache_traits(diffusion_info("dual_cache", config).block_size)),
      info_(diffusion_info(name(), config)) {}

void DualCache::start(Sequence& s) const {
  for (int32_t begin = s.prompt_len; begin < s.limit; begin += info_.block_size) {
    s.blocks.emplace_back(begin, std::min(begin + info_.block_size, s.limit), begin, s.limit);
  }
  grow(s, s.limit, *info_.mask_token_id);
  s.num_final = s.prompt_len;
}

bool DualCache::may_preempt(const Sequence& s) const {
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  return block == s.blocks.end() || block->num_steps() == 0;
}

StepPlan DualCache::plan(const Sequence& s, int32_t budget) const {
  StepPlan plan{.excluded_id = info_.mask_token_id};
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  const bool first = block->num_steps() == 0, shifted = info_.logits_of == DiffusionInfo::LogitsOf::kBefore;
  PlannedSpan span = first ? whole(s) : alone(s, *block);
  if (span.keys.q_len > budget) return plan;
  for (const int32_t p : block->masked_positions()) {
    plan.sample.push_back({p - (shifted ? 1 : 0) - span.keys.phys0, p, block->num_steps()});
    if (first && shifted) break;
  }
  plan.spans.push_back(span);
  return plan;
}

void DualCache::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  for (const size_t i : accepted(sampled, acceptance_rule(s.params.decoding, info_), AtLeast::kOne)) {
    BlockBuffer::decide(s, *block, plan.sample[i].position, sampled[i]);
  }
  block->count_step();
  cut_behind_end_token(s);
  s.num_final = std::min(decided_end(s), s.limit);
}

}  // namespace headrace
