#include "headrace/decoding/autoregressive.h"

#include <algorithm>

namespace headrace {

StepPlan Autoregressive::plan(const Sequence& sequence, int32_t budget) const {
  const TokenRange run{sequence.num_cached, std::min(sequence.num_tokens(), sequence.num_cached + budget)};
  StepPlan plan = causal_step(run, run.end == sequence.num_tokens() ? TokenRange{run.end - 1, run.end} : TokenRange{});
  const TokenRange scored{std::max(run.begin, sequence.num_scored), std::min(run.end, sequence.prompt_len - 1)};
  if (sequence.params.prompt_logprobs && scored.size() > 0) plan.scored = scored;
  return plan;
}

void Autoregressive::commit(Sequence& sequence, const StepPlan& plan, std::span<const SampledToken> sampled) const {
  sequence.num_cached = plan.stored_end(sequence.num_cached);
  if (sampled.empty()) return;
  sequence.tokens.push_back(sampled.front().id);
  sequence.chosen.push_back(sampled.front());
  sequence.num_final = sequence.num_tokens();
}

}  // namespace headrace
