#include "headrace/llm/step_recorder.h"

#include <algorithm>

namespace headrace {
namespace {

using Token = StepReport::Token;

bool masked(const Sequence& s, int32_t position) {
  const auto holds = [position](const DecodingBlock& b) { return b.begin() <= position && position < b.end(); };
  const auto block = std::ranges::find_if(s.blocks, holds);
  return block != s.blocks.end() && block->masked(position);
}

std::vector<std::optional<Token>> tokens_from(const Sequence& s, int32_t first) {
  std::vector<std::optional<Token>> tokens;
  for (int32_t p = first; p < std::min(s.num_tokens(), s.limit); ++p) {
    if (masked(s, p)) {
      tokens.emplace_back();
    } else {
      const SampledToken& chosen = s.chosen[static_cast<size_t>(p - s.prompt_len)];
      tokens.push_back(Token{p, s.tokens[static_cast<size_t>(p)], chosen.confidence});
    }
  }
  return tokens;
}

}  // namespace

void StepRecorder::begin(const Sequence& s, const StepPlan& plan) {
  const PlannedSpan& span = plan.spans.front();
  report_ = {.step = report_.step + 1,
             .context_len = span.keys.ctx_len,
             .first_position = span.keys.phys0,
             .num_rows = plan.num_rows(),
             .stored = span.store};
  for (const DecodingBlock& b : s.blocks) report_.blocks.push_back({b.begin(), b.end(), b.state(), b.num_masked()});
  first_open_ = s.num_published;
  before_ = tokens_from(s, first_open_);
}

void StepRecorder::observe(StepMoment moment, const Sequence& s, const StepPlan& plan) {
  if (moment == StepMoment::kPlanned) {
    begin(s, plan);
    return;
  }
  const auto after = tokens_from(s, first_open_);
  for (size_t i = 0; i < after.size(); ++i) {
    const bool known = i < before_.size() && before_[i] && after[i] && before_[i]->id == after[i]->id;
    if (after[i] && !known) report_.decided.push_back(*after[i]);
  }
  report_.pending = tokens_from(s, s.num_published);
}

}  // namespace headrace
