#include "headrace/decoding/d2f.h"

#include <algorithm>

namespace headrace {
namespace {

StrategyConfig above_threshold(StrategyConfig config) {
  if (config.model) {
    config.model->acceptance = DiffusionInfo::Acceptance::kAbove;
    config.model->threshold = 0.95f;
  }
  return config;
}

}  // namespace

D2F::D2F(const StrategyConfig& config)
    : block_size_(diffusion_info(name(), config).block_size), blocks_(above_threshold(config)) {}

int32_t D2F::min_budget(const Sequence& s) const {
  const int32_t first = s.blocks.empty() ? s.num_tokens() : s.blocks.back().end();
  return std::max(first, blocks_.min_budget(s));
}

StepPlan D2F::plan(const Sequence& s, int32_t budget) const {
  StepPlan plan = blocks_.plan(s, budget);
  if (s.num_forwards > 0 || plan.spans.empty()) return plan;
  if (plan.sample.empty()) return {};  // the prompt must not be chunked
  KeySpan& keys = plan.spans.front().keys;
  keys.kind = KeySpan::Kind::kPrefixFull;
  keys.prompt_len = s.prompt_len;
  keys.padded_prompt_len = (s.prompt_len + block_size_ - 1) / block_size_ * block_size_;
  return plan;
}

}  // namespace headrace
