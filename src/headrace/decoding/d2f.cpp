#include "headrace/decoding/d2f.h"

namespace headrace {
namespace {

StrategyConfig above_threshold(StrategyConfig config) {
  if (config.model) {
    config.model->acceptance = DiffusionInfo::Acceptance::kAbove;
    config.model->threshold = 0.95f;
  }
  return config;
}

StrategyTraits d2f_traits(const StrategyConfig& config) {
  StrategyTraits traits = block_traits("d2f", config);
  traits.text_block.reset();  // a prompt sees all of itself
  return traits;
}

}  // namespace

D2F::D2F(const StrategyConfig& config)
    : DecodingStrategy("d2f", d2f_traits(config)), blocks_(above_threshold(config)) {}

StepPlan D2F::plan(const Sequence& s, int32_t budget) const {
  const int32_t block_size = traits().step->rows, stored = s.prompt_len / block_size * block_size;
  StepPlan plan = blocks_.plan(s, budget);
  const bool again = s.num_forwards > 0;  // after restart()
  if ((again && (s.num_cached > 0 || stored == 0)) || plan.spans.empty()) return plan;
  if (!again && plan.sample.empty()) return {};  // the prompt must not be chunked
  PlannedSpan& span = plan.spans.front();
  span.keys.kind = KeySpan::Kind::kPrefixFull;
  span.keys.prompt_len = s.prompt_len;
  span.keys.padded_prompt_len = (s.prompt_len + block_size - 1) / block_size * block_size;
  if (!again) return plan;
  if (span.keys.padded_prompt_len > budget) return {};
  // Blocks behind the prompt were stored by steps without this mask.
  span.keys.q_len = span.keys.padded_prompt_len;
  span.store = {0, stored};
  plan.sample = {};
  return plan;
}

}  // namespace headrace
