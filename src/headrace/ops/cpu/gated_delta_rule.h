// CPU kernel of gated_delta_rule.
#pragma once
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"
#include "headrace/ops/gated_delta_rule.h"

namespace headrace::cpu {

// Strides in elements. The channels of qkv, the heads of a, b and out, and the heads of a state slot must be dense.
struct GatedDeltaRuleParams {
  const void* qkv = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  const float* a_log = nullptr;
  const float* dt_bias = nullptr;
  float* state = nullptr;
  void* out = nullptr;
  long qkv_stride = 0, a_stride = 0, b_stride = 0, slot_stride = 0, out_stride = 0;
  long num_k_heads = 0, num_v_heads = 0, dk = 0, dv = 0, num_requests = 0, num_snapshots = 0;
  const KeySpan* spans = nullptr;
  const StateSlots* slots = nullptr;
  const StateSnapshot* snapshots = nullptr;
  FloatType qkv_type = FloatType::kF32, gate_type = FloatType::kF32, out_type = FloatType::kF32;
  long chunked_from = 0;  // shorter requests use the recurrence
  int threads = 1;
};

// `args` must be checked. Throws Error kUnsupported if a tensor that must be dense is not.
GatedDeltaRuleParams params_of(const GatedDeltaRuleArgs& args, const OpContext& context);

HR_DECLARE_PER_ISA(void gated_delta_rule(const GatedDeltaRuleParams& params))

}  // namespace headrace::cpu
