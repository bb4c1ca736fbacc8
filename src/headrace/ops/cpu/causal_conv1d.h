// CPU kernel of causal_conv1d.
#pragma once
#include "headrace/ops/causal_conv1d.h"
#include "headrace/ops/cpu/float_type.h"
#include "headrace/ops/cpu/isa.h"

namespace headrace::cpu {

inline constexpr long kMaxConvWidth = 8;  // largest number of taps supported

// Strides in elements; channels are contiguous in x and out, a slot of state is [channels, width - 1] dense.
struct CausalConv1dParams {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* state = nullptr;
  void* out = nullptr;
  long x_stride = 0, weight_stride = 0, weight_tap_stride = 0, slot_stride = 0, out_stride = 0;
  long channels = 0, width = 0, num_requests = 0, num_snapshots = 0;
  const KeySpan* spans = nullptr;
  const StateSlots* slots = nullptr;
  const StateSnapshot* snapshots = nullptr;
  FloatType x_type = FloatType::kF32, weight_type = FloatType::kF32, state_type = FloatType::kF32,
            out_type = FloatType::kF32;
  int threads = 1;
};

// `args` must be checked. Throws Error kUnsupported for a width over kMaxConvWidth or for channels that are not
// contiguous.
CausalConv1dParams params_of(const CausalConv1dArgs& args, const OpContext& context);

HR_DECLARE_PER_ISA(void causal_conv1d(const CausalConv1dParams& params))

}  // namespace headrace::cpu
