#include "headrace/engine/batch_builder.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace headrace {

void BatchBuilder::add_span(const ScheduledStep& step, const PlannedSpan& planned, const ReqToTokenPool& table) {
  const Sequence& s = *step.sequence;
  KeySpan keys = planned.keys;
  keys.q_off = static_cast<int32_t>(ids_.size());
  keys.page_row = s.table_row;
  for (int32_t p = keys.phys0; p < keys.phys0 + keys.q_len; ++p) {
    ids_.push_back(planned.hidden.contains(p) ? *step.plan.excluded_id : s.tokens[static_cast<size_t>(p)]);
    positions_.push_back(keys.logical(p));
    write_slots_.push_back(planned.store.contains(p) ? table.slot_of(s.table_row, p) : kDoNotStore);
  }
  batch_.attn.spans.push_back(keys);
  if (s.state_slot != kNoState) {  // a fresh sequence starts from zeros, whatever its slot held before
    const int32_t from = step.state_from.value_or(s.state_slot);
    batch_.attn.state_slots.push_back({.read = keys.phys0 == 0 ? kNoState : from, .write = s.state_slot});
  }
  const auto request = static_cast<int32_t>(batch_.attn.spans.size()) - 1;
  for (const StateMark& mark : step.left) {  // the step has one span: recurrent rows run once
    batch_.attn.snapshots.push_back({request, mark.num_tokens - keys.phys0, mark.slot});
  }
}

void BatchBuilder::add(const ScheduledStep& step, const ReqToTokenPool& table) {
  HR_ASSERT(!step.plan.calls_cached_what_it_stores());
  const auto row0 = static_cast<int32_t>(ids_.size());
  for (const PlannedSpan& span : step.plan.spans) add_span(step, span, table);
  for (int32_t p = step.plan.scored.begin; p < step.plan.scored.end; ++p) {
    batch_.logits_rows.push_back(row0 + p - step.plan.spans.front().keys.phys0);
  }
  for (const SampleRow& sample : step.plan.sample) batch_.logits_rows.push_back(row0 + sample.row);
  for (const int32_t guide : step.plan.guides) batch_.logits_rows.push_back(row0 + guide);
  for (const SoftRow& soft : step.plan.soft) soft_.push_back({row0 + soft.row, soft.parts});
}

void BatchBuilder::add_merge(const StepPlan& any) {
  const size_t tokens = ids_.size();
  size_t most = 1;  // terms of a row; shorter rows are padded with terms of weight 0
  for (const SoftRow& soft : soft_) most = std::max(most, soft.parts.size());
  merge_.mask.assign(tokens, 0);
  merge_.ids.assign(tokens * most, 0);
  merge_.probs.assign(tokens * most, 0);
  merge_.residual.assign(tokens, 0);
  for (const SoftRow& soft : soft_) {
    const auto row = static_cast<size_t>(soft.row);
    float rest = 1;
    for (size_t i = 0; i < soft.parts.size(); ++i) {
      merge_.ids[row * most + i] = soft.parts[i].id;
      merge_.probs[row * most + i] = soft.parts[i].probability;
      rest -= soft.parts[i].probability;
    }
    merge_.mask[row] = 1;
    merge_.residual[row] = std::max(0.0f, rest);
  }
  const auto count = static_cast<int64_t>(tokens), width = static_cast<int64_t>(most);
  batch_.soft.token_merge = TokenMerge{.mask = TensorView(merge_.mask.data(), DType::kU8, {count}),
                                       .ids = TensorView(merge_.ids.data(), DType::kI64, {count, width}),
                                       .probs = TensorView(merge_.probs.data(), DType::kF32, {count, width}),
                                       .residual = TensorView(merge_.residual.data(), DType::kF32, {count}),
                                       .mask_token_id = *any.excluded_id,
                                       .length = any.soft_length};
}

void BatchBuilder::add_conditioning(std::span<const ScheduledStep> steps) {
  conditioned_.assign(ids_.size(), 0);
  int32_t row0 = 0;
  std::vector<TensorView> parts;
  int64_t rows = 0;
  for (const ScheduledStep& step : steps) {
    if (step.sequence->conditioning && !step.plan.sample.empty()) {
      for (const SampleRow& sample : step.plan.sample)
        conditioned_[static_cast<size_t>(row0) + static_cast<size_t>(sample.row)] = 1;
      rows += parts.emplace_back(step.sequence->conditioning).dim(0);
    }
    row0 += step.plan.num_rows();
  }
  if (parts.empty()) return;
  TensorView logits = parts.front();
  const auto on_host = [](const TensorView& part) { return part.device().type == DeviceType::kCPU; };
  const bool apart = !std::ranges::all_of(parts, on_host);  // DeviceBatch::upload concatenates them then
  if (parts.size() > 1 && !apart) {
    conditioning_ = Tensor(DType::kF32, {rows, logits.dim(1)});
    auto* to = static_cast<std::byte*>(conditioning_.data());
    for (const TensorView& part : parts) {
      std::memcpy(to, part.data(), static_cast<size_t>(part.bytes()));
      to += part.bytes();
    }
    logits = conditioning_;
  }
  batch_.soft.self_conditioning =
      SelfConditioning{.mask = TensorView(conditioned_.data(), DType::kU8, {static_cast<int64_t>(conditioned_.size())}),
                       .logits = apart ? TensorView() : logits};
  if (apart) batch_.soft.conditioning = std::move(parts);
}

// Keeps the memory of the vectors for the next step.
void BatchBuilder::clear() {
  ids_.clear(), positions_.clear(), write_slots_.clear(), soft_.clear();
  batch_.attn.spans.clear(), batch_.attn.state_slots.clear(), batch_.attn.snapshots.clear();
  batch_.logits_rows.clear();
  batch_.soft = {};
}

const ForwardBatch& BatchBuilder::build(std::span<const ScheduledStep> steps, const ReqToTokenPool& table,
                                        AttentionBackend* backend) {
  clear();
  for (const ScheduledStep& step : steps) add(step, table);
  bool any_decode = false, any_extend = false;
  for (const KeySpan& span : batch_.attn.spans) {
    const bool decode = span.q_len == 1 && span.phys0 > 0;
    any_decode |= decode;
    any_extend |= !decode;
  }
  const auto tokens = static_cast<int64_t>(ids_.size());
  batch_.mode = steps.empty() ? ForwardMode::kIdle
                : !any_extend ? ForwardMode::kDecode
                : !any_decode ? ForwardMode::kExtend
                              : ForwardMode::kMixed;
  batch_.attn.page_table = table.page_table();
  batch_.attn.row_versions = table.row_versions();
  batch_.attn.pages_below = table.pages_below();
  batch_.attn.write_slots = TensorView(write_slots_.data(), DType::kI64, {tokens});
  batch_.input_ids = TensorView(ids_.data(), DType::kI32, {tokens});
  batch_.positions = TensorView(positions_.data(), DType::kI32, {tokens});
  if (!soft_.empty()) add_merge(steps.front().plan);
  add_conditioning(steps);
  batch_.attn_backend = backend;
  return batch_;
}

}  // namespace headrace
