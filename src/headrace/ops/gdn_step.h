// Fused Gated DeltaNet decode step, from the convolution to the gated norm: one token per request.
#pragma once
#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/gated_delta_rule.h"
#include "headrace/ops/rms_norm.h"

namespace headrace {

// Runs causal_conv1d, gated_delta_rule and, if given, the norm. Each intermediate is rounded to x's dtype. Request r
// has exactly one token, row r. Under Determinism::kStrict the bits equal those of the separate ops.
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
  const DeviceMetadata* on_device = nullptr;  // not owned: device copies of spans and slots; null on a CPU
  GatedNorm norm = {};
  TensorView out = {};  // [requests, num_v_heads, head_v_dim], dtype of x
};

// Throws Error kInvalidArgument if one of the fused ops would, or if a request does not have exactly one token in its
// row.
void check(const GDNStepArgs& args);

}  // namespace headrace
