// What a device reaches, measured in the run that a bench is held against.
#pragma once
#include "headrace/base/device.h"
#include "headrace/kernels/op_context.h"

namespace headrace::app {

struct DeviceLimits {
  double copy_rate = 0, matmul_rate = 0;  // bytes/s, both directions counted; flop/s in bf16
};

// By copies of 1 GiB, and products of 8192 rows and columns.
DeviceLimits measured_limits(DeviceRuntime& runtime, const OpContext& context);

}  // namespace headrace::app
