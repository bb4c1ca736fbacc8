// The requests of a call, as the kernels of its device want them: on a CPU the arrays themselves; on a GPU the arrays'
// addresses, and on the host spans from which launches are sized.
#pragma once
#include <span>
#include <vector>

#include "headrace/batch/attn_metadata.h"
#include "op_call.h"

namespace headrace::python {

// Bounds of spans on a GPU, as the caller states them. 0: unknown.
struct SpanBounds {
  int32_t max_q_len = 0, max_kv_len = 0;
  int64_t pool_len = 0;  // the most tokens that a row of the page table holds; 0 without a pool
  bool encoder = false;  // keys are the encoder's
};

// Refers to the call's tensors.
class OpRequests {
 public:
  // Takes `spans`, int32 [requests, 15]. On a GPU without max_q_len it copies them to the host and waits. Throws Error
  // kInvalidArgument unless spans that the host knows are packed, cover `num_tokens` tokens and obey their kinds, or if
  // it would have to wait during a capture.
  OpRequests(OpCall& call, nanobind::handle spans, int64_t num_tokens, const SpanBounds& bounds);
  OpRequests(OpRequests&&) = default;  // vectors keep their memory, so spans of it stay valid
  OpRequests(const OpRequests&) = delete;

  // Makes the requests of a decode step: one token each, whose state slots are `slots`, int32 [requests] on a CPU.
  static OpRequests one_token_each(OpCall& call, nanobind::handle slots, int64_t num_tokens);

  // Takes int32 [requests, 2] and, unless None, int32 [n, 3]. Error kInvalidArgument, on a CPU, if a request uses a
  // slot that another writes, or if snapshots are not sorted.
  void take_states(OpCall& call, nanobind::handle slots, nanobind::handle snapshots);

  std::span<const KeySpan> spans() const { return spans_; }
  std::span<const StateSlots> slots() const { return slots_; }
  std::span<const StateSnapshot> snapshots() const { return snapshots_; }
  const DeviceMetadata* on_device() const { return on_cpu_ ? nullptr : &metadata_; }

 private:
  OpRequests() = default;
  void take_bounded(int64_t num_tokens, const SpanBounds& bounds);
  void copy_to_host(const OpCall& call);

  std::span<const KeySpan> spans_;
  std::span<const StateSlots> slots_;
  std::span<const StateSnapshot> snapshots_;
  std::vector<KeySpan> made_spans_;
  std::vector<StateSlots> made_slots_;
  std::vector<StateSnapshot> made_snapshots_;
  DeviceMetadata metadata_;
  bool on_cpu_ = true;
};

}  // namespace headrace::python
