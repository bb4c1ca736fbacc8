#include <algorithm>

#include "headrace/decoding/decoding_strategy.h"

namespace headrace {

int32_t StepPlan::num_rows() const {
  int32_t rows = 0;
  for (const PlannedSpan& span : spans) rows += span.keys.q_len;
  return rows;
}

int32_t StepPlan::num_logits_rows() const {
  return scored.size() + static_cast<int32_t>(std::ssize(sample) + std::ssize(guides));
}

bool StepPlan::calls_cached_what_it_stores() const {
  const auto sees_one_of = [](const KeySpan& keys, const TokenRange& store) {
    const int32_t end = std::min(store.end, keys.ctx_len);
    const TokenRange before{store.begin, std::min(end, keys.hole_begin)};
    const TokenRange behind{std::max(store.begin, keys.hole_end), end};
    return before.size() > 0 || behind.size() > 0;
  };
  return std::ranges::any_of(spans, [&](const PlannedSpan& reader) {
    return std::ranges::any_of(spans,
                               [&](const PlannedSpan& writer) { return sees_one_of(reader.keys, writer.store); });
  });
}

int32_t StepPlan::stored_end(int32_t num_cached) const {
  for (const PlannedSpan& span : spans) {
    if (span.store.size() > 0) num_cached = std::max(num_cached, span.store.end);
  }
  return num_cached;
}

StepPlan causal_step(TokenRange run, TokenRange sampled) {
  StepPlan plan;
  PlannedSpan& span = plan.spans.emplace_back();
  span.keys.q_len = run.size(), span.keys.ctx_len = span.keys.phys0 = run.begin;
  span.store = run;
  for (int32_t p = sampled.begin; p < sampled.end; ++p) {
    SampleRow& row = plan.sample.emplace_back();
    row.row = p - run.begin, row.position = p + 1;
  }
  return plan;
}

}  // namespace headrace
