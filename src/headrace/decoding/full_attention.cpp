#include "headrace/decoding/full_attention.h"

#include <algorithm>

#include "headrace/decoding/block_buffer.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/sampling/acceptance.h"

namespace headrace {

namespace {

StrategyTraits canvas_traits(const DiffusionInfo& info) {
  using AtMost = CanvasShape::AtMost;  // under the loop kTimesteps the whole output is one block
  return {.canvas =
              CanvasShape{.samples = info.block_size,
                          .at_most = info.loop == DiffusionInfo::Loop::kTimesteps ? AtMost::kAllRows : AtMost::kThese}};
}

}  // namespace

FullAttention::FullAttention(const StrategyConfig& config)
    : DecodingStrategy("full_attention", canvas_traits(diffusion_info("full_attention", config))),
      info_(diffusion_info(name(), config)) {}

void FullAttention::start(Sequence& s) const {
  const bool one = follows_reference(s.params.decoding) && info_.loop == DiffusionInfo::Loop::kTimesteps;
  const int32_t size = one ? s.limit - s.prompt_len : info_.block_size;
  for (int32_t begin = s.prompt_len; begin < s.limit; begin += size) {
    s.blocks.emplace_back(begin, std::min(begin + size, s.limit), begin, s.limit);
  }
  grow(s, s.limit, *info_.mask_token_id);
  s.num_final = s.prompt_len;
}

StepPlan FullAttention::plan(const Sequence& s, int32_t budget) const {
  StepPlan plan{.excluded_id = info_.mask_token_id};
  if (rows_needed(traits(), s) > budget) return plan;
  const KeySpan canvas{.q_len = s.num_tokens(), .kind = KeySpan::Kind::kFull};
  plan.spans.push_back({.keys = canvas, .store = {0, s.num_tokens()}});
  const int32_t shift = info_.logits_of == DiffusionInfo::LogitsOf::kBefore ? 1 : 0;
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  for (const int32_t p : block->masked_positions()) plan.sample.push_back({p - shift, p, block->num_steps()});
  if (s.params.decoding.cfg_scale == 0) return plan;
  plan.spans.push_back({.keys = canvas, .store = {}, .hidden = {0, s.prompt_len}});
  for (const SampleRow& row : plan.sample) plan.guides.push_back(s.num_tokens() + row.row);
  return plan;
}

void FullAttention::commit(Sequence& s, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  const auto block = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  const bool reference = follows_reference(s.params.decoding);
  const auto kept = reference ? kept_by_reference(sampled, *block, s.params.decoding, info_)
                              : accepted(sampled, acceptance_rule(s.params.decoding, info_), AtLeast::kOne);
  for (const size_t i : kept) {
    BlockBuffer::decide(s, *block, plan.sample[i].position, sampled[i]);
  }
  block->count_step();
  if (!reference) cut_behind_end_token(s);
  s.num_final = std::min(decided_end(s), s.limit);
}

}  // namespace headrace
