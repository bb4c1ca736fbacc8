// Causal depthwise convolution over a ragged batch, with SiLU and a pooled state.
#pragma once
#include <span>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/op_context.h"

namespace headrace {

// For request r, its tokens t = 0..q_len-1 and channel c:
//   out[t, c] = silu(sum_{j<K} weight[c, j] * x[t - (K - 1) + j, c])
// x before a request's first token comes from its state (raw inputs, oldest first), or is zero if read == kNoState.
// Afterwards state[write] holds the last K - 1 inputs. Each snapshot slot holds the K - 1 inputs before its token
// count. Nothing is written to kNoState. Sums are float32. Requests without tokens keep their state.
// Source: Yang et al. 2024, Gated Delta Networks (short convolution).
struct CausalConv1dArgs {
  TensorView x = {};       // [num_tokens, channels] float32, bfloat16 or float16
  TensorView weight = {};  // [channels, K], any float dtype; column K - 1 multiplies the newest token
  TensorView state = {};   // [slots, channels, K - 1], any float dtype; newest last; updated in place
  std::span<const KeySpan> spans = {};
  std::span<const StateSlots> slots = {};  // one per span
  std::span<const StateSnapshot> snapshots = {};
  const DeviceMetadata* on_device = nullptr;  // not owned: device copies of spans, slots and snapshots; null on a CPU
  TensorView out = {};                        // [num_tokens, channels] float32, bfloat16 or float16
};

// Throws Error kInvalidArgument if shapes or dtypes disagree or a slot is outside the state pool.
void check(const CausalConv1dArgs& args);

// Throws Error kInvalidArgument unless every slot is kNoState or inside [0, num_slots), there is one StateSlots per
// span, and every snapshot has a slot and lies inside its request. gated_delta_rule uses it too; `op` begins the
// message.
void check_state_slots(std::string_view op, std::span<const KeySpan> spans, std::span<const StateSlots> slots,
                       std::span<const StateSnapshot> snapshots, int64_t num_slots);

}  // namespace headrace
