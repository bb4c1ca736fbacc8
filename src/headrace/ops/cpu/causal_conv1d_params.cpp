#include "headrace/ops/cpu/causal_conv1d.h"
#include "headrace/ops/cpu/params.h"

namespace headrace::cpu {

CausalConv1dParams params_of(const CausalConv1dArgs& a, const OpContext& context) {
  const int64_t width = a.weight.dim(1);
  HR_REQUIRE(width >= 1 && width <= kMaxConvWidth, ErrorCode::kUnsupported, "causal_conv1d: kernel width ", width,
             " is not built; built are 1 to ", kMaxConvWidth);
  HR_REQUIRE(a.x.stride(1) == 1 && a.out.stride(1) == 1, ErrorCode::kUnsupported,
             "causal_conv1d: channels of x and out have strides ", a.x.stride(1), " and ", a.out.stride(1),
             ", expected 1");
  HR_REQUIRE(width == 1 || (a.state.stride(2) == 1 && a.state.stride(1) == width - 1), ErrorCode::kUnsupported,
             "causal_conv1d: a slot of state has strides ", a.state.stride(1), " and ", a.state.stride(2),
             ", expected ", width - 1, " and 1");
  return {.x = a.x.data(),
          .weight = a.weight.data(),
          .state = a.state.data(),
          .out = a.out.data(),
          .x_stride = a.x.stride(0),
          .weight_stride = a.weight.stride(0),
          .weight_tap_stride = a.weight.stride(1),
          .slot_stride = a.state.stride(0),
          .out_stride = a.out.stride(0),
          .channels = a.x.dim(1),
          .width = width,
          .num_requests = static_cast<long>(a.spans.size()),
          .num_snapshots = static_cast<long>(a.snapshots.size()),
          .spans = a.spans.data(),
          .slots = a.slots.data(),
          .snapshots = a.snapshots.data(),
          .x_type = float_type(a.x),
          .weight_type = float_type(a.weight),
          .state_type = float_type(a.state),
          .out_type = float_type(a.out),
          .threads = context.threads};
}

}  // namespace headrace::cpu
