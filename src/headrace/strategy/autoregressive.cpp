#include "headrace/strategy/autoregressive.h"

#include <algorithm>

namespace headrace {

StepPlan Autoregressive::plan(const Sequence& sequence, int32_t budget) const {
  const TokenRange run{sequence.num_cached, std::min(sequence.num_tokens(), sequence.num_cached + budget)};
  const bool complete = run.end == sequence.num_tokens();
  return {.tokens = run, .store = run, .sample = complete ? TokenRange{run.end - 1, run.end} : TokenRange{}};
}

void Autoregressive::commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  sequence.num_cached = plan.store.end;
  if (!sampled.empty()) sequence.tokens.push_back(sampled.front().id);
}

}  // namespace headrace
