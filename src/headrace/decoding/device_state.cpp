#include "headrace/decoding/device_state.h"

#include <algorithm>

#include "headrace/core/error.h"
#include "headrace/decoding/decoding_option.h"
#include "headrace/decoding/decoding_strategy.h"
#include "headrace/decoding/reference_loop.h"
#include "headrace/sampling/acceptance.h"
#include "headrace/sampling/sampler.h"

namespace headrace {
namespace {

using Rule = DecodingParams::Rule;

// Returns nothing for a rule that denoise_step does not support.
std::optional<BlockRule::Score> score_of(Rule rule) {
  switch (rule) {
    case Rule::kConfidence: return BlockRule::Score::kConfidence;
    case Rule::kMargin: return BlockRule::Score::kMargin;
    case Rule::kEntropy: return BlockRule::Score::kEntropy;
    case Rule::kLeftmost: return BlockRule::Score::kLeftmost;
    default: return {};
  }
}

BlockRule device_rule(const DecodingParams& params, const DiffusionInfo& info) {
  const AcceptanceRule rule = acceptance_rule(params, info);
  return {.score = *score_of(rule.rule),
          .passes = rule.passes == DiffusionInfo::Acceptance::kAbove ? BlockRule::Passes::kAbove
                                                                     : BlockRule::Passes::kAtLeast,
          .threshold = rule.threshold};
}

}  // namespace

std::string DecodingStrategy::host_because() const { return str("denoise_step has no rules of ", name()); }

std::string too_large_a_block(int32_t block_size) {
  if (block_size <= DenoiseState::kMaxBlock) return {};
  return str("block_size is ", block_size, ", expected at most ", DenoiseState::kMaxBlock);
}

std::optional<std::string> needs_host(const Sequence& s, const DiffusionInfo& info) {
  const DecodingParams& decoding = s.params.decoding;
  if (s.params.repetition_penalty != 1) {
    return str("repetition_penalty is ", s.params.repetition_penalty, ", expected 1");
  }
  if (decoding.copy_penalty != 0) return str("copy_penalty is ", decoding.copy_penalty, ", expected 0");
  if (decoding.cfg_scale != 0) return str("cfg_scale is ", decoding.cfg_scale, ", expected 0");
  if (s.params.end_of_text == SamplingParams::EndOfText::kBanned) return "end tokens are banned, expected allowed";
  HR_ASSERT(!s.params.changes_logits());
  if (s.scores_of == ScoresOf::kFiltered) {
    return "scores are of what temperature and filters leave, expected of the model's distribution";
  }
  if (follows_reference(decoding)) return str("schedule is ", text_of(decoding.schedule), ", expected threshold");
  if (decoding.order_temperature != 0) {
    return str("order_temperature is ", decoding.order_temperature, ", expected 0");
  }
  const Rule rule = rule_of(decoding, info);
  if (!score_of(rule)) return str("rule is ", text_of(rule), ", expected confidence, margin, entropy or leftmost");
  if (s.eos_ids.size() > DenoiseState::kMaxEndIds) {
    return str("there are ", s.eos_ids.size(), " end tokens, expected at most ", DenoiseState::kMaxEndIds);
  }
  return {};
}

std::optional<DenoiseState> device_state(const Sequence& s, const DecodingBlock& open, const DiffusionInfo& info) {
  if (needs_host(s, info)) return {};
  DenoiseState state{.running = 1,
                     .begin = open.begin(),
                     .editable = open.editable_begin() - open.begin(),
                     .limit = s.limit,
                     .num_steps = open.num_steps(),
                     .page_row = s.table_row,
                     .rule = device_rule(s.params.decoding, info),
                     .draw = draw_params(s.params, top_p_of(info)),
                     .seed = s.params.seed,
                     .num_end_ids = static_cast<int32_t>(s.eos_ids.size())};
  for (const int32_t p : open.masked_positions()) state.set_masked(p - open.begin(), 1);
  std::ranges::copy(s.eos_ids, std::begin(state.end_ids));
  return state;
}

std::optional<DenoiseState> canvas_state(const Sequence& s, DenoiseState::Sees sees, const DiffusionInfo& info) {
  const auto open = std::ranges::find_if_not(s.blocks, &DecodingBlock::complete);
  if (open == s.blocks.end() || info.block_size > DenoiseState::kMaxBlock) return {};
  auto state = device_state(s, *open, info);
  if (!state) return {};
  state->sees = sees;
  state->canvas_len = s.num_tokens();
  state->shift = info.logits_of == DiffusionInfo::LogitsOf::kBefore ? 1 : 0;
  return state;
}

}  // namespace headrace
