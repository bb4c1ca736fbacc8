// Gated delta rule: the recurrence of a Gated DeltaNet layer over a ragged batch, with pooled states.
#pragma once
#include <span>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/op_context.h"

namespace headrace {

inline constexpr int32_t kGDNChunk = 64;  // tokens per chunk of the chunked form

// Value head h uses key head h / (num_v_heads / num_k_heads). For its state S [head_v_dim, head_k_dim] and each token
// t:
//   g = -exp(a_log[h]) * softplus(a[t, h] + dt_bias[h]);  beta = sigmoid(b[t, h])
//   qn = q / sqrt(sum q^2 + 1e-6) / sqrt(head_k_dim);     kn = k / sqrt(sum k^2 + 1e-6)
//   S = exp(g) S;  d = beta (v - S kn);  S = S + d kn^T;  out[t, h] = S qn
// softplus(u) = u for u > 20. S starts as state[read], or as zeros if read == kNoState. The final S goes to
// state[write], and S after a snapshot's `num_tokens` tokens to that snapshot's slot. Nothing is written to kNoState.
// Arithmetic is float32 or wider. Requests without tokens keep their state. Under Determinism::kStrict the bits do not
// depend on how a request is split into calls.
// Source: Yang et al. 2024, Gated Delta Networks, eq. 10. The chunked form uses ratios of decays, with all exponents <=
// 0.
struct GatedDeltaRuleArgs {
  TensorView qkv = {};  // [num_tokens, 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim]: q | k | v after the
                        // convolution; float32, bfloat16 or float16
  TensorView a = {}, b = {};  // [num_tokens, num_v_heads], one float dtype
  TensorView a_log = {};      // float32 [num_v_heads]
  TensorView dt_bias = {};    // float32 [num_v_heads]
  TensorView state = {};      // float32 [slots, num_v_heads, head_v_dim, head_k_dim], updated in place
  int32_t num_k_heads = 0;
  std::span<const KeySpan> spans = {};
  std::span<const StateSlots> slots = {};  // one per span
  std::span<const StateSnapshot> snapshots = {};
  const DeviceMetadata* on_device = nullptr;  // not owned: device copies of spans, slots and snapshots; null on a CPU
  TensorView out = {};                        // [num_tokens, num_v_heads, head_v_dim] float32, bfloat16 or float16

  int64_t num_v_heads() const { return state.dim(1); }
  int64_t head_v_dim() const { return state.dim(2); }
  int64_t head_k_dim() const { return state.dim(3); }
};

// Throws Error kInvalidArgument if shapes or dtypes disagree or a slot is outside the state pool.
void check(const GatedDeltaRuleArgs& args);

}  // namespace headrace
