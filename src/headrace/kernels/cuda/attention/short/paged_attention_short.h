// When a request and kv head is one warp's work, or that of the warps of a block.
#pragma once
#include <cstdint>

#include "headrace/kernels/cuda/attention/paged_attention.h"

namespace headrace::cuda {

struct ShortTask {
  int64_t pieces = 0;   // requests times kv heads
  int max_rows = 0;     // of a request
  int dim = 0;          // of a head: of keys or values, the longer
  bool strict = false;  // Determinism::kStrict
  bool runs = false;    // fast mode, and requests may be of the usual kind (attention_short_run.cuh)
};

struct ShortPlan {
  int sharers = 0;    // warps for a request and kv head: 1, or those of a block; 0: another kernel is to do it
  int most_keys = 0;  // that a row sees
};

// Where keys are so few that beginnings and ends are much of the work, as measured on an H200
// (docs/performance/short_requests.md): warps that share keys up to six pieces of work for each multiprocessor, beyond
// that a warp for each. In strict mode no warps share, and more than 32 rows read keys twice.
constexpr ShortPlan plan_short(const ShortTask& task, int num_sms) {
  constexpr int kMostRows = 40, kSharers = 4, kKeys = 640, kKeysReadTwice = 384, kManyKeys = 2048;
  const bool many = task.pieces >= 6 * num_sms;
  if (task.runs && !many && ((task.dim == 128 && task.max_rows <= 32) || (task.dim == 256 && task.max_rows <= 16)))
    return {kSharers, kManyKeys};
  if (task.dim <= 64 || task.dim > 128 || task.max_rows > kMostRows) return {};
  if (task.pieces * 2 < (task.strict ? 3 : 4) * num_sms) return {};
  if (!task.strict) return {1, kKeys};
  if (task.max_rows > 32) return {1, kKeysReadTwice};
  return {1, !many && task.pieces >= 3 * num_sms ? kManyKeys : kKeys};
}

// 16-bit floats on Hopper; in strict mode with the Hopper kernel's bits. False when the call or the device is not of
// that form.
bool paged_attention_short(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);
// Of a call that is not of that form for its number of keys alone: how many would be. 0: another reason, or none.
int shorter_keys(const AttentionParams& params, const AttentionShape& shape, const Stream& stream);

}  // namespace headrace::cuda
