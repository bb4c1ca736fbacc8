// Causal depthwise convolution over a ragged batch, with SiLU and a pooled state.
#pragma once
#include <span>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// For request r, its tokens t = 0..q_len-1 and channel c:
//   out[t, c] = silu(sum_{j<K} weight[c, j] * x[t - (K - 1) + j, c])
// where x before the request's first token is its state (raw inputs, oldest first; zeros when read == kNoState).
// Then state[write] = the last K - 1 inputs, and each snapshot the K - 1 inputs before its token count. Nothing is
// written for kNoState. Sums are float32. Requests without tokens keep their state.
// Source: Yang et al. 2024, Gated Delta Networks (short convolution).
struct CausalConv1dArgs {
  TensorView x = {};       // [num_tokens, channels] float32, bfloat16 or float16
  TensorView weight = {};  // [channels, K], any float dtype; column K - 1 multiplies the newest token
  TensorView state = {};   // [slots, channels, K - 1], any float dtype; newest last; updated in place
  std::span<const KeySpan> spans = {};
  std::span<const StateSlots> slots = {};  // one per span
  std::span<const StateSnapshot> snapshots = {};
  const DeviceMetadata* on_device = nullptr;  // not owned: the three where a device's kernel reads them; null on a CPU
  TensorView out = {};                        // [num_tokens, channels] float32, bfloat16 or float16
};

// Error kInvalidArgument when shapes or dtypes disagree or a slot is outside the state pool.
void check(const CausalConv1dArgs& args);

// Shared with gated_delta_rule: slots are kNoState or inside [0, num_slots), snapshots belong to their requests.
void check_state_slots(std::string_view op, std::span<const KeySpan> spans, std::span<const StateSlots> slots,
                       std::span<const StateSnapshot> snapshots, int64_t num_slots);

}  // namespace headrace
