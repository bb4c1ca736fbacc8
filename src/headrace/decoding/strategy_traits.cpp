#include <algorithm>
#include <limits>

#include "headrace/decoding/decoding_strategy.h"

namespace headrace {
namespace {

int32_t rounded_up(int32_t tokens, int32_t multiple) { return (tokens + multiple - 1) / multiple * multiple; }

}  // namespace

int32_t most_step_rows(const StrategyTraits& t) {
  if (!t.step && !t.segment) return std::numeric_limits<int32_t>::max();
  return std::max(t.step ? t.step->most_rows : 1, t.segment ? t.segment->keys.q_len : 1);
}

int32_t rows_needed(const StrategyTraits& t, const Sequence& s) {
  const int32_t texts = s.params.decoding.cfg_scale > 0 ? 2 : 1;  // a guided request's step runs its text twice
  if (t.canvas) return texts * s.num_tokens();
  if (t.segment) return t.segment->keys.q_len;
  const int32_t block = t.text_block.value_or(t.step ? t.step->rows : 1);
  const int32_t rows = std::min(most_step_rows(t), rounded_up(s.limit, block));
  return t.text_block ? rows : std::max(rows, s.num_tokens());
}

int32_t most_stored(const StrategyTraits& t, const Sequence& s) {
  const bool whole_blocks = t.text_block && t.step && t.step->stores == StepShape::Stores::kAll;
  return whole_blocks ? rounded_up(s.limit, *t.text_block) : s.limit;
}

}  // namespace headrace
