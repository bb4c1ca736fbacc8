// Host time of decode steps before their graph is launched.
#pragma once
#include <optional>

#include "headrace/batch/device_batch.h"
#include "headrace/cache/kv_pool.h"
#include "headrace/ops/op_context.h"

namespace headrace::bench {

struct HostStep {
  double first_upload_s = 0, upload_s = 0;  // with all pages new; the median of a step that adds no page
  // Seconds of the metadata's part of CudaGraphRunner::run for a decode step: padding to the graph's size, which is the
  // batch's, the upload, and the backend's plan. Absent unless every request has one new token.
  std::optional<double> step_s;
};

// Medians of 21 calls, by the host's clock. `batch` lies on the host and has no ids, positions or write slots, which
// step_s counts; `placed`, which is to be new, is left with another batch than this one.
HostStep time_host_step(const ForwardBatch& batch, const KVPool& pool, DeviceBatch& placed, DeviceRuntime& device,
                        const OpContext& context);

}  // namespace headrace::bench
