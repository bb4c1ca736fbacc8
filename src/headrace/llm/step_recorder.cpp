#include "headrace/llm/step_recorder.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

using Token = StepReport::Token;

bool masked(const Sequence& s, int32_t position) {
  const auto holds = [position](const DecodingBlock& b) { return b.begin() <= position && position < b.end(); };
  const auto block = std::ranges::find_if(s.blocks, holds);
  return block != s.blocks.end() && block->masked(position);
}

enum class Guesses : uint8_t { kNo, kYes };

// A canvas decides nothing before its last step; until then `chosen` holds its likeliest tokens.
std::vector<std::optional<Token>> tokens_from(const Sequence& s, int32_t first, Guesses guesses) {
  const bool guessed = guesses == Guesses::kYes && s.conditioning;
  std::vector<std::optional<Token>> tokens;
  for (int32_t p = first; p < std::min(s.num_tokens(), s.limit); ++p) {
    const SampledToken& chosen = s.chosen[static_cast<size_t>(p - s.prompt_len)];
    if (!masked(s, p)) {
      tokens.push_back(Token{p, s.tokens[static_cast<size_t>(p)], chosen.confidence});
    } else if (guessed) {
      tokens.push_back(Token{p, chosen.best_id, std::exp(chosen.best_logprob)});
    } else {
      tokens.emplace_back();
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
  before_ = tokens_from(s, first_open_, Guesses::kNo);
}

void StepRecorder::observe(StepMoment moment, const Sequence& s, const StepPlan& plan) {
  if (moment == StepMoment::kPlanned) {
    begin(s, plan);
    return;
  }
  const auto after = tokens_from(s, first_open_, Guesses::kNo);
  for (size_t i = 0; i < after.size(); ++i) {
    const bool known = i < before_.size() && before_[i] && after[i] && before_[i]->id == after[i]->id;
    if (after[i] && !known) report_.decided.push_back(*after[i]);
  }
  report_.pending = tokens_from(s, s.num_published, Guesses::kYes);
}

}  // namespace headrace
