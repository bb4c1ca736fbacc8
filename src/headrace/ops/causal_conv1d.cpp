#include "headrace/ops/causal_conv1d.h"

#include "headrace/ops/checks.h"

namespace headrace {

void check(const CausalConv1dArgs& a) {
  check_rank("causal_conv1d: x", a.x, 2);
  check_rank("causal_conv1d: weight", a.weight, 2);
  check_rank("causal_conv1d: state", a.state, 3);
  const int64_t channels = a.x.dim(1), kernel = a.weight.dim(1);
  check_shape("causal_conv1d: weight", a.weight, {channels, kernel});
  check_shape("causal_conv1d: state", a.state, {a.state.dim(0), channels, kernel - 1});
  check_shape("causal_conv1d: out", a.out, a.x.shape());
  for (const TensorView* t : {&a.x, &a.weight, &a.state, &a.out}) check_float("causal_conv1d", *t);
  check_rows_contiguous("causal_conv1d: x", a.x);
  check_state_slots("causal_conv1d", a.spans, a.slots, a.snapshots, a.state.dim(0));
}

void check_state_slots(std::string_view op, std::span<const KeySpan> spans, std::span<const StateSlots> slots,
                       std::span<const StateSnapshot> snapshots, int64_t num_slots) {
  const auto in_pool = [num_slots](int32_t slot) { return slot == kNoState || (slot >= 0 && slot < num_slots); };
  HR_REQUIRE(slots.size() == spans.size(), ErrorCode::kInvalidArgument, op, ": ", slots.size(),
             " state slots, expected one for each of ", spans.size(), " requests");
  for (size_t r = 0; r < slots.size(); ++r) {
    HR_REQUIRE(in_pool(slots[r].read) && in_pool(slots[r].write), ErrorCode::kInvalidArgument, op, ": request ", r,
               " reads state slot ", slots[r].read, " and writes ", slots[r].write, ", the pool has ", num_slots);
  }
  for (const StateSnapshot& s : snapshots) {
    HR_REQUIRE(s.request >= 0 && static_cast<size_t>(s.request) < spans.size() && s.num_tokens >= 1 &&
                   s.num_tokens <= spans[static_cast<size_t>(s.request)].q_len && s.slot != kNoState && in_pool(s.slot),
               ErrorCode::kInvalidArgument, op, ": snapshot of request ", s.request, " after ", s.num_tokens,
               " tokens to slot ", s.slot, " is outside the batch or the pool of ", num_slots);
  }
}

}  // namespace headrace
