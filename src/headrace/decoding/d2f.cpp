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
  StepPlan plan = blocks_.plan(s, budget);
  if (s.num_forwards > 0 || plan.spans.empty()) return plan;
  if (plan.sample.empty()) return {};  // the prompt must not be chunked
  const int32_t block_size = traits().step->rows;
  KeySpan& keys = plan.spans.front().keys;
  keys.kind = KeySpan::Kind::kPrefixFull;
  keys.prompt_len = s.prompt_len;
  keys.padded_prompt_len = (s.prompt_len + block_size - 1) / block_size * block_size;
  return plan;
}

}  // namespace headrace
