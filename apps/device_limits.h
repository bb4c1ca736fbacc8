// Rates that a device reaches, measured in the same run as the bench that is compared with them.
#pragma once
#include <algorithm>
#include <string_view>

#include "headrace/core/tensor.h"
#include "headrace/models/model.h"
#include "headrace/ops/op_context.h"

namespace headrace::app {

struct DeviceLimits {
  double copy_rate = 0, matmul_rate = 0;  // bytes/s, both directions counted; flop/s in bf16
};

// By copies of 1 GiB, and products of 8192 rows and columns, a second each: for as long a device's power limit lets
// steps of many rows run as well. One that has rested multiplies faster, for some tenths of a second.
DeviceLimits measured_limits(DeviceRuntime& runtime, const OpContext& context);

// Seconds that a step of `rows` rows takes at least: to read the weights, or for the products of weights of 2 bytes.
inline double step_floor(const ModelInfo& info, const DeviceLimits& limits, double rows) {
  return std::max(info.bytes_read(rows) / limits.copy_rate, info.bytes_multiplied() * rows / limits.matmul_rate);
}
// A JSON field beside such a floor, with the comma behind it: of what it is one, where rows may read less.
inline std::string_view floor_of(const ModelInfo& info) {
  return info.experts.bytes > 0 ? R"("floor_of": "experts chosen evenly", )" : "";
}

}  // namespace headrace::app
