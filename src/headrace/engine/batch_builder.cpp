#include "headrace/engine/batch_builder.h"

namespace headrace {

void BatchBuilder::add(const ScheduledStep& step, const ReqToTokenPool& table) {
  const Sequence& s = *step.sequence;
  const StepPlan& plan = step.plan;
  const auto row0 = static_cast<int32_t>(ids_.size());
  for (int32_t p = plan.tokens.begin; p < plan.tokens.end; ++p) {
    ids_.push_back(s.tokens[static_cast<size_t>(p)]);
    positions_.push_back(p);
    const bool stored = p >= plan.store.begin && p < plan.store.end;
    write_slots_.push_back(stored ? table.slot_of(s.table_row, p) : kDoNotStore);
  }
  for (int32_t p = plan.sample.begin; p < plan.sample.end; ++p) batch_.logits_rows.push_back(row0 + p - plan.tokens.begin);
  batch_.attn.spans.push_back({.q_off = row0,
                               .q_len = plan.tokens.size(),
                               .ctx_len = plan.tokens.begin,
                               .phys0 = plan.tokens.begin,
                               .kind = plan.kind,
                               .block_size = plan.block_size,
                               .page_row = s.table_row});
  if (s.state_slot != kNoState) {  // a fresh sequence starts from zeros, whatever its slot held before
    batch_.attn.state_slots.push_back({.read = plan.tokens.begin == 0 ? kNoState : s.state_slot, .write = s.state_slot});
  }
}

const ForwardBatch& BatchBuilder::build(std::span<const ScheduledStep> steps, const ReqToTokenPool& table,
                                        AttentionBackend* backend) {
  ids_.clear();
  positions_.clear();
  write_slots_.clear();
  batch_ = {};
  bool any_decode = false, any_extend = false;
  for (const ScheduledStep& step : steps) {
    const bool decode = step.plan.tokens.size() == 1 && step.plan.tokens.begin > 0;
    any_decode |= decode;
    any_extend |= !decode;
    add(step, table);
  }
  const auto tokens = static_cast<int64_t>(ids_.size());
  batch_.mode = steps.empty() ? ForwardMode::kIdle
                : !any_extend ? ForwardMode::kDecode
                : !any_decode ? ForwardMode::kExtend
                              : ForwardMode::kMixed;
  batch_.attn.page_table = table.page_table();
  batch_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {tokens});
  batch_.input_ids = TensorView(ids_.data(), DType::kI32, {tokens});
  batch_.positions = TensorView(positions_.data(), DType::kI32, {tokens});
  batch_.attn_backend = backend;
  return batch_;
}

}  // namespace headrace
