#include "headrace/strategy/device_state.h"

#include <algorithm>

#include "headrace/sampling/acceptance.h"
#include "headrace/strategy/reference_loop.h"

namespace headrace {
namespace {

// The request's rule as block_step has it; nothing for one that it cannot say.
std::optional<BlockRule> device_rule(const DecodingParams& params, const DiffusionInfo& info) {
  using Rule = DecodingParams::Rule;
  if (follows_reference(params) || params.order_temperature != 0) return {};
  const AcceptanceRule rule = acceptance_rule(params, info);
  BlockRule said{.passes = rule.passes == DiffusionInfo::Acceptance::kAbove ? BlockRule::Passes::kAbove
                                                                            : BlockRule::Passes::kAtLeast,
                 .threshold = rule.threshold};
  switch (rule.rule) {
    case Rule::kConfidence: said.score = BlockRule::Score::kConfidence; return said;
    case Rule::kMargin: said.score = BlockRule::Score::kMargin; return said;
    case Rule::kEntropy: said.score = BlockRule::Score::kEntropy; return said;
    case Rule::kLeftmost: said.score = BlockRule::Score::kLeftmost; return said;
    default: return {};
  }
}

}  // namespace

std::optional<BlockState> device_state(const Sequence& s, const DecodingBlock& open, const DiffusionInfo& info) {
  const auto rule = device_rule(s.params.decoding, info);
  const bool most_likely = s.params.temperature == 0 && !s.params.changes_logits();
  if (!rule || !most_likely || s.eos_ids.size() > BlockState::kMaxEndIds) return {};
  BlockState state{.running = 1,
                   .begin = open.begin(),
                   .editable = open.editable_begin() - open.begin(),
                   .limit = s.limit,
                   .num_steps = open.num_steps(),
                   .page_row = s.table_row,
                   .rule = *rule,
                   .num_end_ids = static_cast<int32_t>(s.eos_ids.size())};
  for (const int32_t p : open.masked_positions()) state.set_masked(p - open.begin(), 1);
  std::ranges::copy(s.eos_ids, std::begin(state.end_ids));
  return state;
}

std::optional<BlockState> canvas_state(const Sequence& s, BlockState::Sees sees, const DiffusionInfo& info) {
  const auto open = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  if (open == s.blocks.end() || info.block_size > BlockState::kMaxBlock) return {};
  auto state = device_state(s, *open, info);
  if (!state) return {};
  state->sees = sees;
  state->canvas_len = s.num_tokens();
  state->shift = info.logits_of == DiffusionInfo::LogitsOf::kBefore ? 1 : 0;
  return state;
}

}  // namespace headrace
