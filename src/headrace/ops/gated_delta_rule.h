// The recurrence of a Gated DeltaNet layer over a ragged batch, with pooled states.
#pragma once
#include <span>

#include "headrace/batch/attn_metadata.h"
#include "headrace/ops/op_context.h"

namespace headrace {

inline constexpr int32_t kGDNChunk = 64;  // tokens of one chunk of the chunked form

// Per value head h with key head h / (num_v_heads / num_k_heads), state S [head_v_dim, head_k_dim] and token t:
//   g = -exp(a_log[h]) * softplus(a[t, h] + dt_bias[h]);  beta = sigmoid(b[t, h])
//   qn = q / sqrt(sum q^2 + 1e-6) / sqrt(head_k_dim);     kn = k / sqrt(sum k^2 + 1e-6)
//   S = exp(g) S;  d = beta (v - S kn);  S = S + d kn^T;  out[t, h] = S qn
// softplus(u) = u for u > 20. S starts as state[read], zeros when read == kNoState; the last S goes to
// state[write], and after `num_tokens` tokens to each snapshot's slot; nothing is written for kNoState. All in
// float32 or wider. Requests without tokens keep their state. Determinism::kStrict: any split of a request into
// calls gives the same bits.
// Source: Yang et al. 2024, Gated Delta Networks, eq. 10; chunked form with ratios of decays, all exponents <= 0.
struct GatedDeltaRuleArgs {
  TensorView qkv = {};  // [num_tokens, 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim]: q | k | v, after the
                        // convolution; float32, bfloat16 or float16
  TensorView a = {}, b = {};  // [num_tokens, num_v_heads], one float dtype
  TensorView a_log = {};      // float32 [num_v_heads]
  TensorView dt_bias = {};    // float32 [num_v_heads]
  TensorView state = {};      // float32 [slots, num_v_heads, head_v_dim, head_k_dim], updated in place
  int32_t num_k_heads = 0;
  std::span<const KeySpan> spans = {};
  std::span<const StateSlots> slots = {};  // one per span
  std::span<const StateSnapshot> snapshots = {};
  const DeviceMetadata* on_device = nullptr;  // not owned: the three where a device's kernel reads them; null on a CPU
  TensorView out = {};                        // [num_tokens, num_v_heads, head_v_dim] float32, bfloat16 or float16

  int64_t num_v_heads() const { return state.dim(1); }
  int64_t head_v_dim() const { return state.dim(2); }
  int64_t head_k_dim() const { return state.dim(3); }
};

// Error kInvalidArgument when shapes or dtypes disagree or a slot is outside the state pool.
void check(const GatedDeltaRuleArgs& args);

}  // namespace headrace
