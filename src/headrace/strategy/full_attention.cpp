#include "headrace/strategy/full_attention.h"

#include <algorithm>

#include "headrace/base/error.h"
#include "headrace/sampling/acceptance.h"
#include "headrace/strategy/block_buffer.h"

namespace headrace {

FullAttention::FullAttention(const StrategyConfig& config) : info_(diffusion_info(name(), config)) {
  HR_REQUIRE(config.num_blocks == 1, ErrorCode::kInvalidArgument, "strategy '", name(), "': it is to denoise ",
             config.num_blocks, " blocks at a time, expected 1");
}

void FullAttention::start(Sequence& s) const {
  for (int32_t begin = s.prompt_len; begin < s.limit; begin += info_.block_size) {
    s.blocks.emplace_back(begin, std::min(begin + info_.block_size, s.limit), begin, s.limit);
  }
  s.tokens.resize(static_cast<size_t>(s.limit), *info_.mask_token_id);
  s.chosen.resize(static_cast<size_t>(s.limit - s.prompt_len));
  s.num_final = s.prompt_len;
}

StepPlan FullAttention::plan(const Sequence& s, int32_t budget) const {
  StepPlan plan{.excluded_id = info_.mask_token_id};
  if (s.num_tokens() > budget) return plan;
  plan.spans.push_back({.keys = {.q_len = s.num_tokens(), .kind = KeySpan::Kind::kFull}});
  const int32_t shift = info_.logits_of == DiffusionInfo::LogitsOf::kBefore ? 1 : 0;
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  for (const int32_t p : block->masked_positions()) plan.sample.push_back({p - shift, p, block->num_steps()});
  return plan;
}

void FullAttention::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  for (const size_t i : accepted(sampled, acceptance_rule(s.params.decoding, info_), AtLeast::kOne)) {
    const int32_t position = plan.sample[i].position;
    block->decide(position);
    s.tokens[static_cast<size_t>(position)] = sampled[i].id;
    s.chosen[static_cast<size_t>(position - s.prompt_len)] = sampled[i];
  }
  block->count_step();
  s.limit = std::min(s.limit, first_end_token(s) + 1);
  for (DecodingBlock& each : s.blocks) each.clip(s.limit);
  s.num_final = std::min(decided_end(s), s.limit);
}

}  // namespace headrace
