// One token of a Gated DeltaNet layer for each request, from the convolution to the gated norm in one pass.
#pragma once
#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/gated_delta_rule.h"

namespace headrace {

// What follows the recurrence: out = rms_norm(out) * weight * silu(gate), as RMSNormArgs over the last dimension.
struct GatedNorm {
  TensorView gate = {};    // [num_tokens, num_v_heads, head_v_dim], dtype of out; null: no norm
  TensorView weight = {};  // [head_v_dim], any float dtype
  float eps = 1e-6f;
  explicit operator bool() const { return static_cast<bool>(gate); }
};

// causal_conv1d, then gated_delta_rule, then the norm if there is one, with their rounding to x's dtype in between.
// Request r has one token, row r. Under Determinism::kStrict the bits are those of the ops one by one.
struct GDNStepArgs {
  TensorView x = {};  // [requests, 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim], as CausalConv1dArgs
  TensorView conv_weight = {};  // [channels, K]
  TensorView conv_state = {};   // [slots, channels, K - 1], updated in place
  TensorView a = {}, b = {};    // [requests, num_v_heads]
  TensorView a_log = {};        // float32 [num_v_heads]
  TensorView dt_bias = {};      // float32 [num_v_heads]
  TensorView state = {};        // float32 [slots, num_v_heads, head_v_dim, head_k_dim], updated in place
  int32_t num_k_heads = 0;
  std::span<const KeySpan> spans = {};
  std::span<const StateSlots> slots = {};
  const DeviceMetadata* on_device = nullptr;  // not owned; null on a CPU
  GatedNorm norm = {};
  TensorView out = {};  // [requests, num_v_heads, head_v_dim], dtype of x
};

// Error kInvalidArgument as the ops that it stands for, and when a request has not exactly one token in its row.
void check(const GDNStepArgs& args);

}  // namespace headrace
