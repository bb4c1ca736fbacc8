#include "op_requests.h"

#include <algorithm>

#include "headrace/core/error.h"

namespace headrace::python {
namespace {

namespace nb = nanobind;

constexpr int64_t kSpanFields = sizeof(KeySpan) / sizeof(int32_t);

void check_kind(std::string_view op, size_t r, const KeySpan& s) {
  const auto kind = static_cast<int32_t>(s.kind), from = static_cast<int32_t>(s.window_from);
  const auto refuse = [&](const char* field, int64_t found, const char* expected) {
    throw Error(ErrorCode::kInvalidArgument,
                str(op, ": spans: request ", r, ": ", field, " is ", found, ", expected ", expected));
  };
  if (kind < 0 || kind > static_cast<int32_t>(KeySpan::Kind::kNone)) refuse("kind", kind, "0 to 4");
  if (from < 0 || from > static_cast<int32_t>(KeySpan::WindowFrom::kSegment)) refuse("window_from", from, "0 or 1");
  constexpr int32_t kMost = 1 << 30;  // sums of two positions are int32
  const auto in_range = [&](const char* field, int32_t value, int32_t least) {
    if (value < least || value > kMost) refuse(field, value, least == 0 ? "0 to 2^30" : "1 to 2^30");
  };
  in_range("q_len", s.q_len, 0);
  in_range("ctx_len", s.ctx_len, 0);
  in_range("phys0", s.phys0, 0);
  in_range("hole_begin", s.hole_begin, 0);
  in_range("hole_end", s.hole_end, 0);
  in_range("block_size", s.block_size, 1);
  in_range("prompt_len", s.prompt_len, 0);
  in_range("padded_prompt_len", s.padded_prompt_len, 0);
  in_range("encoder_len", s.encoder_len, 0);
  if (s.log_shift < -kMost || s.log_shift > kMost) refuse("log_shift", s.log_shift, "-2^30 to 2^30");
  if (s.hole_begin > s.hole_end) refuse("hole_begin", s.hole_begin, "at most hole_end");
  if (s.kind != KeySpan::Kind::kPrefixFull) return;
  if (s.ctx_len != 0) refuse("ctx_len", s.ctx_len, "0: a prompt under a prefix-full mask is never chunked");
  if (s.prompt_len > s.padded_prompt_len) refuse("prompt_len", s.prompt_len, "at most padded_prompt_len");
}

void check_spans(const OpCall& call, std::span<const KeySpan> spans, int64_t num_tokens) {
  int64_t next = 0;
  for (size_t r = 0; r < spans.size(); ++r) {
    check_kind(call.op(), r, spans[r]);
    HR_REQUIRE(spans[r].q_off == next, ErrorCode::kInvalidArgument, call.op(), ": spans: request ", r, " has q_off ",
               spans[r].q_off, ", expected ", next, " (requests are packed without gaps)");
    next += spans[r].q_len;
  }
  HR_REQUIRE(next == num_tokens, ErrorCode::kInvalidArgument, call.op(), ": spans have ", next, " tokens, expected ",
             num_tokens, ", the tokens of the first tensor");
}

// Returns the rows of an int32 tensor; on a GPU their addresses.
template <class Row>
std::span<const Row> rows_of(OpCall& call, const char* name, nb::handle given) {
  const TensorView tensor = call.read(given, name, DTypes::kI32, 2);
  call.expect_shape(name, tensor, {kAnySize, sizeof(Row) / sizeof(int32_t)});
  call.expect_dense(name, tensor);
  return {static_cast<const Row*>(tensor.data()), static_cast<size_t>(tensor.dim(0))};
}

void check_sorted(const OpCall& call, std::span<const StateSnapshot> snapshots) {
  for (size_t i = 1; i < snapshots.size(); ++i) {
    const StateSnapshot &before = snapshots[i - 1], &here = snapshots[i];
    HR_REQUIRE(
        before.request < here.request || (before.request == here.request && before.num_tokens <= here.num_tokens),
        ErrorCode::kInvalidArgument, call.op(), ": snapshots: row ", i, " is of request ", here.request, " after ",
        here.num_tokens, " tokens, expected rows sorted by request, then by tokens");
  }
}

// A state is written by one request at most, and read by no other then.
void check_slots(const OpCall& call, std::span<const StateSlots> slots) {
  struct Write {
    int32_t slot;
    size_t request;
  };
  if (slots.size() < 2) return;
  std::vector<Write> writes;
  for (size_t r = 0; r < slots.size(); ++r) {
    if (slots[r].write >= 0) writes.push_back({slots[r].write, r});
  }
  std::ranges::stable_sort(writes, {}, &Write::slot);
  const auto twice = std::ranges::adjacent_find(writes, {}, &Write::slot);
  HR_REQUIRE(twice == writes.end(), ErrorCode::kInvalidArgument, call.op(), ": slots: requests ", twice->request,
             " and ", (twice + 1)->request, " write state slot ", twice->slot, ", expected one of its own for each");
  for (size_t r = 0; r < slots.size(); ++r) {
    const auto write = std::ranges::lower_bound(writes, slots[r].read, {}, &Write::slot);
    const bool is_others = write != writes.end() && write->slot == slots[r].read && write->request != r;
    HR_REQUIRE(!is_others, ErrorCode::kInvalidArgument, call.op(), ": slots: request ", r, " reads state slot ",
               slots[r].read, ", which request ", write->request, " writes, expected one that no other writes");
  }
}

}  // namespace

OpRequests::OpRequests(OpCall& call, nb::handle spans, int64_t num_tokens, const SpanBounds& bounds) {
  spans_ = rows_of<KeySpan>(call, "spans", spans);
  on_cpu_ = call.device().type == DeviceType::kCPU;
  metadata_.spans = spans_.data();
  if (!on_cpu_ && bounds.max_q_len > 0) {
    take_bounded(num_tokens, bounds);
    return;
  }
  if (!on_cpu_) copy_to_host(call);
  check_spans(call, spans_, num_tokens);
}

// Spans that no kernel reads: a table of kernels sizes its launches by them. Requests of one token are exact but for
// their keys. Others may have any tokens up to max_q_len, which DeviceMetadata::most_rows says.
void OpRequests::take_bounded(int64_t num_tokens, const SpanBounds& bounds) {
  const auto requests = static_cast<int64_t>(spans_.size());
  const bool exact = bounds.max_q_len == 1 && requests == num_tokens;
  const auto keys = static_cast<int32_t>(std::min<int64_t>(bounds.max_kv_len, bounds.pool_len));
  int64_t left = num_tokens;
  for (int64_t r = 0; r < requests; ++r) {
    const auto rows = static_cast<int32_t>(std::min<int64_t>(left, bounds.max_q_len));
    KeySpan span{.q_off = static_cast<int32_t>(num_tokens - left), .q_len = rows, .kind = KeySpan::Kind::kNone};
    if (bounds.encoder) {
      span.encoder_len = keys;
    } else if (exact) {
      span.ctx_len = span.phys0 = std::max(keys - 1, 0);
    }
    made_spans_.push_back(span);
    left -= rows;
  }
  if (!exact) {
    metadata_.most_rows = static_cast<int32_t>(std::clamp<int64_t>(num_tokens, 1, bounds.max_q_len));
    metadata_.most_keys = bounds.max_kv_len;
  }
  spans_ = made_spans_;
}

void OpRequests::copy_to_host(const OpCall& call) {
  HR_REQUIRE(!is_capturing(call.stream()), ErrorCode::kInvalidArgument, call.op(),
             ": spans on a GPU cannot be copied to the host while a CUDA graph is captured, expected max_q_len (and "
             "max_kv_len)");
  made_spans_.resize(spans_.size());
  CallerStream& stream = call.caller_stream();
  const ReleasedGil released;
  const std::lock_guard lock(stream.mutex);
  stream.runtime->copy_to_host(made_spans_.data(), spans_.data(), spans_.size_bytes());
  spans_ = made_spans_;
}

OpRequests OpRequests::one_token_each(OpCall& call, nb::handle given, int64_t num_tokens) {
  const TensorView slots = call.read(given, "slots", DTypes::kI32, 1);
  call.expect_shape("slots", slots, {num_tokens});
  HR_ASSERT(call.device().type == DeviceType::kCPU);
  OpRequests requests;
  for (int32_t r = 0; r < num_tokens; ++r) {
    const int32_t slot = static_cast<const int32_t*>(slots.data())[r];
    requests.made_spans_.push_back({.q_off = r});
    requests.made_slots_.push_back({slot, slot});
  }
  requests.spans_ = requests.made_spans_, requests.slots_ = requests.made_slots_;
  check_slots(call, requests.slots_);
  return requests;
}

void OpRequests::take_states(OpCall& call, nb::handle slots, nb::handle snapshots) {
  slots_ = rows_of<StateSlots>(call, "slots", slots);
  if (!snapshots.is_none()) snapshots_ = rows_of<StateSnapshot>(call, "snapshots", snapshots);
  HR_REQUIRE(slots_.size() == spans_.size(), ErrorCode::kInvalidArgument, call.op(), ": slots has ", slots_.size(),
             " rows, expected one for each of ", spans_.size(), " requests");
  if (on_cpu_) {
    check_slots(call, slots_);
    check_sorted(call, snapshots_);
    return;
  }
  metadata_.state_slots = slots_.data(), metadata_.snapshots = snapshots_.data();
  made_slots_.resize(slots_.size());  // the host needs their number alone
  const auto any = std::ranges::find_if(spans_, [](const KeySpan& span) { return span.q_len > 0; });
  const auto request = static_cast<int32_t>(any == spans_.end() ? 0 : any - spans_.begin());
  made_snapshots_.assign(snapshots_.size(), {.request = request, .num_tokens = 1, .slot = 0});
  slots_ = made_slots_, snapshots_ = made_snapshots_;
}

}  // namespace headrace::python
